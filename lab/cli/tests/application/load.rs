//! The SPECweb99-like load against Headway itself, over each interface of the application.

use std::process::Stdio;

use serde_json::Value;

use super::directories::Fixture;
use crate::common::headway_lab;

#[test]
fn every_request_is_answered_under_load() {
    let test = "every_request_is_answered_under_load";
    let fixture = Fixture::new(test, 1);
    let url = format!("http://{}/", fixture.server.address);
    let set = fixture.set.to_str().unwrap();
    for way in ["/own", "/direct", "/pipe", "/fastcgi"] {
        // With this seed no client draws one of the largest files, which would take twenty seconds.
        let output = headway_lab()
            .args(["specweb99", &url, "--fileset", set, "--whole-set"])
            .args(["--dynamic-path", way])
            .args(["--cgi-path", "/cgi-bin/headway-specweb99"])
            .args(["--connections", "8", "--iterations", "1", "--seed", "412"])
            .args(["--ramp", "100ms", "--warmup", "0", "--duration", "1s"])
            .args(["--timeout", "25s", "--json"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{way}: {err}");
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let info = &json["specweb99"];
        let iteration = &info["iterations"][0];
        assert_eq!(iteration["errors"], 0, "{way}: {iteration}");
        assert_eq!(iteration["rates_bits_per_s"].as_array().unwrap().len(), 8);
        let log = &info["log"];
        assert_eq!(log["fault"], Value::Null, "{way}");
        assert_eq!(
            [&log["missing"], &log["out_of_order"], &log["unknown"]],
            [0, 0, 0],
            "{way}"
        );
        assert_eq!(log["records"], log["acknowledged"], "{way}");
    }
    fixture.is_well();
}
