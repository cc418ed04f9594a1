//! TLS: its settings take effect, and what is wrong with them is reported with key and line.

use headway_config::keys::{Topic, reference};
use headway_config::{
    Checked, CipherSuite, Config, ConfigError, ConfigFile, Endpoint, Environment, Handshakes,
    KnownExtensions, Offload, Settings, TlsIdentity,
};
use std::os::unix::fs::symlink;
use std::path::Path;
use tempfile::TempDir;

use super::mistakes::Mistake;
use crate::HERE;

/// A directory with certificates and keys.
pub(super) fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for name in ["a.pem", "a.key", "b.pem", "b.key", "ca.pem"] {
        std::fs::write(at(name), name).unwrap();
    }
    symlink("a.pem", at("link.pem")).unwrap();
    std::fs::create_dir(at("site")).unwrap();
    directory
}

fn check_in(directory: &Path, text: &str, here: &Environment) -> Result<Checked, Vec<ConfigError>> {
    let path = directory.join("headway.toml");
    Config::load(ConfigFile { path: &path, text }, Settings::default(), here)
}

pub(super) fn good_in(directory: &Path, text: &str) -> Config {
    check_in(directory, text, &HERE)
        .unwrap_or_else(|errors| panic!("{text}\n{errors:?}"))
        .config
}

pub(super) fn good(text: &str) -> Config {
    good_in(directory().path(), text)
}

pub(super) fn messages(text: &str, here: &Environment) -> Vec<String> {
    let errors = check_in(directory().path(), text, here).expect_err(text);
    errors.iter().map(ToString::to_string).collect()
}

/// The names of the two files, whose paths are absolute.
fn names(identity: &TlsIdentity) -> [&str; 2] {
    [&identity.certificate, &identity.key].map(|path| {
        assert!(path.is_absolute(), "{}", path.display());
        path.file_name().unwrap().to_str().unwrap()
    })
}

/// A server that speaks TLS.
const TLS: &str = "tls-listen = \"8443\"\ntls-certificate = \"a.pem\"\ntls-key = \"a.key\"";

#[test]
fn tls_has_defaults_when_it_has_a_listener_and_a_certificate() {
    let config = good(TLS);
    let tls = config.tls.as_ref().unwrap();
    assert_eq!(names(&tls.identities[0]), ["a.pem", "a.key"]);
    assert_eq!(tls.identities.len(), 1);
    assert_eq!(
        (tls.only_13, tls.handshakes, tls.handshake_timeout_ms),
        (false, Handshakes::Process, 10_000)
    );
    assert!(tls.session_tickets && tls.client_authorities.is_none());
    assert_eq!(tls.offload, Offload::Off);
    assert!(!tls.redirects && tls.hsts_seconds.is_none() && !tls.client_may_be_unknown);
    assert!(good("root = \"site\"").tls.is_none());
}

#[test]
fn default_of_tls_in_the_reference_is_the_effective_setting() {
    let acme = "listen = 8080\nacme-hosts = \"a.example\"\nstate-directory = \"state\"";
    let printed = good(&format!("{TLS}\ntls-client-ca = \"ca.pem\"\n{acme}")).to_toml();
    let mut compared = 0;
    for key in reference(KnownExtensions::NONE) {
        let is_value = !key.default.contains(' ') && key.default != "none";
        if key.topic == Topic::Tls && is_value {
            let written = [key.default.to_owned(), format!("\"{}\"", key.default)];
            let mut lines = written
                .iter()
                .map(|value| format!("{} = {value}\n", key.name));
            assert!(lines.any(|line| printed.contains(&line)), "{}", key.name);
            compared += 1;
        }
    }
    assert_eq!(compared, 10);
}

#[test]
fn plain_default_address_is_not_bound_when_only_tls_listens() {
    let listeners = |text: &str| {
        let config = good(&format!("{TLS}\n{text}"));
        let ports = config.listen.iter().filter_map(Endpoint::tcp);
        let ports: Vec<u16> = ports.map(|address| address.port()).collect();
        (ports, config.tls.unwrap().first_listener)
    };
    assert_eq!(listeners(""), (vec![8443], 0));
    assert_eq!(
        listeners("listen = [\"80\", \"81\"]"),
        (vec![80, 81, 8443], 2)
    );
    let config = good(&TLS.replace("\"8443\"", "[\":443\", \"[::]:443\"]"));
    let expected = ["0.0.0.0:443", "[::]:443"].map(|address| address.parse().unwrap());
    assert_eq!(config.listen, expected);
}

#[test]
fn tls_settings_take_effect_when_they_are_set() {
    let config = good(&format!(
        "{TLS}\nlisten = 8080\ntls-minimum = \"1.3\"\ntls-handshakes = \"inline\"\ntls-handshake-timeout = \"5s\"\n\
         tls-offload = \"kernel\"\n\
         tls-tickets = false\ntls-client-ca = \"ca.pem\"\ntls-client-certificate = \"optional\"\n\
         tls-suites = \"TLS_CHACHA20_POLY1305_SHA256\"\ntls-redirect = true\nhsts = \"365d\""
    ));
    let tls = config.tls.unwrap();
    assert_eq!(
        (tls.only_13, tls.handshakes, tls.handshake_timeout_ms),
        (true, Handshakes::Inline, 5_000)
    );
    assert_eq!(tls.offload, Offload::Kernel);
    assert!(!tls.session_tickets && tls.client_may_be_unknown && tls.redirects);
    assert!(tls.client_authorities.unwrap().ends_with("ca.pem"));
    assert_eq!(tls.hsts_seconds, Some(31_536_000));
    assert_eq!(tls.suites, [CipherSuite::Chacha20]);
    let required = good(&format!("{TLS}\ntls-client-ca = \"ca.pem\"\nhsts = 0"));
    let tls = required.tls.unwrap();
    assert!(!tls.client_may_be_unknown);
    assert_eq!(tls.hsts_seconds, Some(0), "browsers forget it");
}

#[test]
fn identities_are_that_of_the_top_level_then_those_of_hosts_without_duplicates() {
    let hosts = "[[host]]\nroot = \"site\"\ntls-certificate = \"b.pem\"\ntls-key = \"b.key\"\n\
        [[host]]\nnames = \"x\"\nroot = \"site\"\ntls-certificate = \"a.pem\"\ntls-key = \"a.key\"\n\
        [[host]]\nnames = \"y\"\nroot = \"site\"\ntls-certificate = \"b.pem\"\ntls-key = \"b.key\"";
    let all = |text: &str| {
        let tls = good(&format!("{text}\n{hosts}")).tls.unwrap();
        let names = tls
            .identities
            .iter()
            .map(|identity| names(identity)[0].to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(all(TLS), ["a.pem", "b.pem"]);
    assert_eq!(all("tls-listen = 8443"), ["b.pem", "a.pem"]);
    let inherits = format!("{TLS}\n[[host]]\nroot = \"site\"");
    assert_eq!(good(&inherits).tls.unwrap().identities.len(), 1);
}

#[test]
fn key_is_in_the_file_of_the_certificate_when_it_is_not_set() {
    let config = good(
        "tls-listen = 8443\ntls-certificate = \"a.pem\"\n\
         [[host]]\nroot = \"site\"\ntls-certificate = \"b.pem\"",
    );
    let tls = config.tls.unwrap();
    let all: Vec<_> = tls.identities.iter().map(names).collect();
    assert_eq!(all, [["a.pem"; 2], ["b.pem"; 2]]);
}

/// A tool that renews certificates may switch the link.
#[test]
fn symbolic_link_to_a_certificate_stays() {
    let config = good("tls-listen = 8443\ntls-certificate = \"link.pem\"");
    assert_eq!(names(&config.tls.unwrap().identities[0])[0], "link.pem");
}

#[test]
fn effective_tls_settings_are_the_same_when_read_back() {
    let directory = directory();
    let hosts = "[[host]]\nroot = \"site\"\ntls-certificate = \"b.pem\"\n\
        [[host]]\nnames = \"x\"\nroot = \"site\"\ntls-certificate = \"a.pem\"\ntls-key = \"a.key\"";
    for text in [
        TLS.to_owned(),
        format!("{TLS}\n{hosts}"),
        format!("tls-listen = [\"8443\", \"[::1]:8443\"]\n{hosts}"),
        format!(
            "{TLS}\nlisten = [\":0\", \":0\"]\ntls-redirect = true\nhsts = 60\ntls-minimum = \"1.3\"\n\
             tls-client-ca = \"ca.pem\"\ntls-client-certificate = \"optional\"\ntls-tickets = false\n\
             tls-handshakes = \"inline\"\ntls-handshake-timeout = \"1500ms\"\ntls-offload = \"kernel\"\n{hosts}"
        ),
        format!("{TLS}\ntls-client-ca = \"ca.pem\""),
        format!(
            "{TLS}\ntls-suites = [\"TLS_AES_256_GCM_SHA384\", \"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256\"]"
        ),
    ] {
        let config = good_in(directory.path(), &text);
        let printed = config.to_toml();
        assert_eq!(good_in(directory.path(), &printed), config, "{printed}");
        let json: serde_json::Value = serde_json::from_str(&config.to_json()).unwrap();
        assert_eq!(
            json["tls-handshakes"],
            config.tls.unwrap().handshakes.to_string()
        );
    }
    let printed = good_in(directory.path(), TLS).to_toml();
    assert!(
        !printed.lines().any(|line| line.starts_with("listen =")),
        "{printed}"
    );
    let plain = good_in(directory.path(), "root = \"site\"").to_toml();
    assert!(!plain.contains("tls") && !plain.contains("hsts"), "{plain}");
}

/// Each is reported in a file that has it as its last lines, below those of [`TLS`].
const MISTAKES_BESIDE_TLS: &[Mistake] = &[
    (
        "listen = 8443",
        1,
        &["tls-listen: 127.0.0.1:8443 is listed twice"],
    ),
    (
        "listen = \":8443\"",
        1,
        &["tls-listen: 127.0.0.1:8443 and 0.0.0.0:8443 overlap"],
    ),
    ("status = 8443", 4, &["status", "also a listen address"]),
    ("listen = []", 4, &["listen: at least one address"]),
    (
        "tls-redirect = true",
        4,
        &["tls-redirect: no plain listener", "set listen = \":80\""],
    ),
    (
        "tls-client-certificate = \"optional\"",
        4,
        &["tls-client-certificate: ", "set tls-client-ca as well"],
    ),
    (
        "tls-client-ca = \"none.pem\"",
        4,
        &["tls-client-ca: the file ", "none.pem: No such file"],
    ),
    (
        "tls-minimum = \"1.1\"",
        4,
        &["tls-minimum: `1.1` is not", "1.2, 1.3"],
    ),
    (
        "tls-suites = [\"TLS_AES_128_GCM_SHA256\", \"RC4\"]",
        4,
        &[
            "tls-suites: `RC4` is not a cipher suite; write one of ",
            ", TLS_CHACHA20_POLY1305_SHA256, ",
        ],
    ),
    (
        "tls-suites = \"TLS_AES_128_GCM_SHA256\"",
        4,
        &["no suite of TLS 1.2", "tls-minimum = \"1.3\""],
    ),
    (
        "tls-suites = \"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256\"",
        4,
        &["no suite of TLS 1.3", "TLS_AES_128_GCM_SHA256"],
    ),
    (
        "tls-suites = []\ntls-minimum = \"1.3\"",
        4,
        &["no suite of TLS 1.3"],
    ),
    ("tls-minimum = 1.3", 4, &["`1.3` is not \"1.2\" or \"1.3\""]),
    (
        "tls-offload = \"nic\"",
        4,
        &["tls-offload: `nic` is not", "off, kernel"],
    ),
    (
        "tls-handshakes = \"thread\"",
        4,
        &["`thread`", "process, inline"],
    ),
    (
        "tls-client-certificate = \"no\"",
        4,
        &["`no`", "required, optional"],
    ),
    (
        "tls-handshake-timeout = 0",
        4,
        &["tls-handshake-timeout: 0ms is not within 1ms"],
    ),
    (
        "tls-tickets = 1",
        4,
        &["tls-tickets: `1` is not true or false"],
    ),
    (
        "hsts = \"1500ms\"",
        4,
        &["hsts: 1500ms is not a whole number"],
    ),
    ("hsts = \"4000d\"", 4, &["hsts: 345600000s is not within"]),
    ("hsts = true", 4, &["hsts: `true` is not a time"]),
    (
        "[[host]]\nroot = \"site\"\ntls-key = \"b.key\"",
        6,
        &["host.tls-key: there is no certificate for this key"],
    ),
    (
        "[[host]]\nroot = \"site\"\ntls-certificate = \"b\"",
        6,
        &["host.tls-certificate: the file ", "/b: No such file"],
    ),
    (
        "[[host]]\nroot = \"site\"\ntls-certificate = \"b.pem\"\ntls-key = \"site\"",
        7,
        &["host.tls-key: ", "site is not a file"],
    ),
    (
        "[[host]]\nroot = \"site\"\ntls-redirect = true",
        6,
        &["host.tls-redirect: unknown key here", "top of the file"],
    ),
    (
        "[[location]]\nprefix = \"/a/\"\ndirect = \"/bin/true\"",
        6,
        &[
            "location.direct: the program gets the client's socket",
            "use cgi, fastcgi, scgi or proxy",
        ],
    ),
    (
        "[[host]]\nroot = \"site\"\n[[host.location]]\nprefix = \"/a/\"\ndirect = \"/bin/true\"",
        8,
        &["host.location.direct: ", "cannot speak TLS"],
    ),
    ("ssl_ciphers = \"HIGH\"", 4, &["write tls-suites"]),
    ("ssl_protocols = \"TLSv1.3\"", 4, &["write tls-minimum"]),
    (
        "tls-certificat = \"a.pem\"",
        4,
        &["did you mean `tls-certificate`?"],
    ),
];

const MISTAKES_OF_TLS: &[Mistake] = &[
    (
        "tls-listen = []\ntls-certificate = \"a.pem\"",
        1,
        &["tls-listen: at least one address"],
    ),
    (
        "tls-listen = [\"1\", \"2\", \"1\"]\ntls-certificate = \"a.pem\"",
        1,
        &["tls-listen: 127.0.0.1:1 is listed twice"],
    ),
    (
        "tls-listen = \"example.com:443\"",
        1,
        &["tls-listen: `example.com:443` is not an address"],
    ),
    (
        "workers = 1\ntls-listen = 8443",
        2,
        &["tls-listen: TLS needs a certificate", "tls-key"],
    ),
    (
        "root = \"site\"\ntls-listen = 8443\n[[host]]\nnames = \"x\"\nroot = \"site\"\ntls-certificate = \"a.pem\"",
        2,
        &["tls-listen: TLS needs a certificate"],
    ),
    (
        "tls-listen = 8443\n[[host]]\nroot = \"site\"\ntls-certificate = \"a.pem\"\n\
         [[host]]\nnames = \"x\"\nroot = \"site\"",
        5,
        &["host: the host has no certificate", "top of the file"],
    ),
    (
        "tls-listen = 8443\ntls-key = \"a.key\"",
        2,
        &["tls-key: there is no certificate for this key; set tls-certificate"],
    ),
    (
        "tls-listen = 8443\ntls-certificate = \"none.pem\"",
        2,
        &["tls-certificate: the file ", "none.pem: No such file"],
    ),
    (
        "tls-listen = 8443\ntls-certificate = \"a.pem\"\ntls-key = \"none.key\"",
        3,
        &["tls-key: the file ", "none.key: No such file"],
    ),
    (
        "tls-listen = 8443\ntls-certificate = \"site\"",
        2,
        &["tls-certificate: ", "site is not a file"],
    ),
];

pub(super) fn assert_reported(text: &str, line: usize, parts: &[&str]) {
    let messages = messages(text, &HERE);
    let position = format!("headway.toml:{line}: ");
    let right = |message: &String| {
        message.contains(&position) && parts.iter().all(|part| message.contains(part))
    };
    assert!(
        messages.len() == 1 && right(&messages[0]),
        "{text}\nexpected {position}{parts:?}, message {messages:#?}"
    );
}

#[test]
fn mistake_of_tls_is_reported_with_line_and_key() {
    for (text, line, parts) in MISTAKES_OF_TLS {
        assert_reported(text, *line, parts);
    }
    for (text, line, parts) in MISTAKES_BESIDE_TLS {
        assert_reported(&format!("{TLS}\n{text}"), *line, parts);
    }
}

#[test]
fn setting_of_tls_is_an_error_when_nothing_listens_for_it() {
    for setting in [
        "tls-certificate = \"a.pem\"",
        "tls-key = \"none.key\"",
        "tls-minimum = \"1.2\"",
        "tls-handshakes = \"process\"",
        "tls-offload = \"kernel\"",
        "tls-handshake-timeout = 10",
        "tls-tickets = true",
        "tls-client-ca = \"ca.pem\"",
        "tls-client-certificate = \"required\"",
        "tls-redirect = false",
        "hsts = \"1h\"",
    ] {
        let (key, _) = setting.split_once(' ').unwrap();
        let part = format!("{key}: there is no TLS without tls-listen; set tls-listen = \":443\"");
        assert_reported(&format!("listen = 8080\n{setting}"), 2, &[&part]);
    }
    for key in ["tls-certificate", "tls-key"] {
        let part = format!("host.{key}: there is no TLS without tls-listen");
        let text = format!("[[host]]\nroot = \"site\"\n{key} = \"none.pem\"");
        assert_reported(&text, 3, &[&part]);
    }
}

/// What seems to be missing may be the line that could not be read.
#[test]
fn nothing_is_reported_as_missing_when_a_line_could_not_be_read() {
    assert_reported(
        "tls-lissten = 8443\ntls-certificate = \"a.pem\"",
        1,
        &["`tls-listen`"],
    );
    assert_reported("tls-listen = 8443\ntls-certificate = 1", 2, &["not a path"]);
    let text = format!("{TLS}\ntls-client-cas = \"ca.pem\"\ntls-client-certificate = \"required\"");
    assert_reported(&text, 4, &["`tls-client-ca`"]);
}

#[test]
fn direct_program_over_tls_names_the_research_key_only_where_there_is_one() {
    let text = format!("{TLS}\n[[location]]\nprefix = \"/d/\"\ndirect = \"/bin/true\"");
    assert!(messages(&text, &HERE)[0].contains("or name its prefix in research.pipe"));
    let users = Environment {
        extensions: KnownExtensions::NONE,
        ..HERE
    };
    let message = messages(&text, &users).concat();
    assert!(
        message.ends_with("use cgi, fastcgi, scgi or proxy"),
        "{message}"
    );
    // Its responses pass through the server.
    let config = good(&format!("research.pipe = \"/d/\"\n{text}"));
    assert!(config.hosts[0].locations[0].reads_responses());
}

#[test]
fn file_that_this_machine_lacks_is_not_a_usage_error() {
    let text = "tls-listen = 8443\ntls-certificate = \"none.pem\"";
    let errors = check_in(directory().path(), text, &HERE).unwrap_err();
    assert!(errors.iter().all(ConfigError::is_environment), "{errors:?}");
}

#[test]
fn development_speaks_tls_at_its_own_port_or_where_listen_says() {
    let of = |text: &str| {
        let config = good(text);
        let tls = config.tls.clone().unwrap();
        assert!(tls.is_for_development && tls.identities.len() == 1);
        let file = tls.identities[0].certificate.clone();
        assert!(file.ends_with("headway/localhost.pem") && file.is_absolute());
        assert_eq!(tls.identities[0].key, file);
        let listen: Vec<String> = config.listen.iter().map(ToString::to_string).collect();
        (listen.join(" "), tls.first_listener)
    };
    assert_eq!(of("tls = true"), ("127.0.0.1:8443".into(), 0));
    let of_listen = of("tls = true\nlisten = [\":9000\", \"[::1]:9000\"]");
    assert_eq!(of_listen, ("0.0.0.0:9000 [::1]:9000".into(), 0));
    let both = of("tls = true\nlisten = 8080\ntls-listen = 9443");
    assert_eq!(both, ("127.0.0.1:8080 127.0.0.1:9443".into(), 1));
    assert!(good("tls = false").tls.is_none());
    let printed = good("tls = true").to_toml();
    assert!(printed.contains("tls = true\n") && !printed.contains("tls-certificate ="));
}

#[test]
fn development_has_no_other_certificate() {
    for text in [
        "tls = true\ntls-certificate = \"a.pem\"\ntls-key = \"a.key\"",
        "tls = true\nlisten = 80\ntls-listen = 443\nacme-hosts = \"a.example\"\nstate-directory = \"state\"",
        "tls = true\n[[host]]\nnames = \"a.example\"\nroot = \"site\"\ntls-certificate = \"a.pem\"",
    ] {
        let found = messages(text, &HERE);
        let wanted = "with tls = true the server makes a certificate itself";
        assert!(found.len() == 1 && found[0].contains(wanted), "{found:?}");
    }
}
