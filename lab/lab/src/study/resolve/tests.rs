use super::*;

const COMMON: &str = r#"
[scale.quick]
repeats = 1
seconds = 5
[scale.full]
repeats = 3
seconds = 20
warmup = 4
closed-warmup = 9
closed-seconds = 30
[environment.disk]
set = { quick = "400MB", full = "3GB" }
disk = "ide-5400"
memory = { quick = "130MB", full = "1GB" }
link = "1Gbit"
fill = 3000
[environment.fits]
extends = "disk"
set = "65MB"
[workload.web]
connections = { quick = 256, full = 1024 }
timeout = "30s"
"#;

/// The first line is 1; the measure begins on line 3, what follows it on line 9.
const HEAD: &str = r#"number = 7
name = "inversion"
[[measure]]
name = "m"
environment = "fits"
workload = "web"
servers = ["headway", "h2o"]
points = { quick = ["95%"], full = ["20%", "95%"] }
"#;

fn read(text: &str, scale: Scale) -> Result<Study, StudyError> {
    Study::read(
        Texts {
            name: "07.toml",
            text,
            common: COMMON,
        },
        scale,
    )
}

#[test]
fn closed_loops_last_longer_when_the_scale_says_so() {
    let points = HEAD.replace("[\"20%\", \"95%\"]", "[\"20%\", \"capacity\"]");
    let study = read(&points, Scale::Full).expect("a study");
    let measure = study.measure("m").expect("the measure");
    let of = |point: &str| {
        let spec = study.spec(measure, "h2o", point, 1);
        let spec = spec.expect("a known server");
        (spec.warmup_s, spec.seconds)
    };
    assert_eq!((of("20%"), of("capacity")), ((4.0, 20.0), (9.0, 30.0)));
    let needed = Study::capacity(measure, None, study.choice("h2o").expect("it is there"), 1);
    assert_eq!((needed.warmup_s, needed.seconds), (9.0, 30.0));
    let own = format!("{points}warmup = 1\nseconds = 2\n");
    let study = read(&own, Scale::Full).expect("a study");
    let measure = study.measure("m").expect("the measure");
    let spec = study.spec(measure, "h2o", "capacity", 1);
    let spec = spec.expect("as above");
    assert_eq!((spec.warmup_s, spec.seconds), (1.0, 2.0));
}

#[test]
fn values_are_those_of_the_scale_when_there_are_two() {
    let study = read(HEAD, Scale::Full).expect("a study");
    let measure = study.measure("m").expect("the measure");
    assert_eq!(measure.points, ["20%", "95%"]);
    assert_eq!(
        (measure.repeats, measure.open.seconds, measure.open.warmup_s),
        (3, 20.0, 4.0)
    );
    assert_eq!(measure.environment.set_bytes, 65_000_000);
    assert_eq!(measure.environment.memory_bytes, Some(1_000_000_000));
    assert_eq!(measure.environment.disk.as_deref(), Some("ide-5400"));
    assert_eq!(measure.workload.connections, 1024);
    assert_eq!(measure.workload.timeout_s, Some(30.0));
    let quick = read(HEAD, Scale::Quick).expect("a study");
    let quick = quick.measure("m").expect("the measure");
    assert_eq!(
        (quick.points.len(), quick.points_ever.len(), quick.repeats),
        (1, 2, 1)
    );
}

#[test]
fn rate_comes_from_another_measure_when_a_point_names_it() {
    let text = format!(
        "{HEAD}[[measure]]\nname = \"n\"\nenvironment = \"disk\"\nworkload = \"web\"\nservers = [\"headway\"]\npoints = [\"80% of best-peer in m\"]\n"
    );
    let study = read(&text, Scale::Quick).expect("a study");
    let measure = study.measure("n").expect("the measure");
    let spec = study
        .spec(measure, "headway", "80% of best-peer in m", 1)
        .expect("a point");
    let needs: Vec<&str> = spec
        .needs()
        .iter()
        .map(|server| server.kind.name())
        .collect();
    assert_eq!(needs, ["h2o"]);
    let elsewhere = spec.elsewhere().expect("another place");
    assert_eq!(elsewhere.environment.set_bytes, 65_000_000);
    assert_eq!(spec.environment.set_bytes, 400_000_000);
}

/// Each text with the line that the error names, and part of what it says.
fn assert_errors(cases: &[(String, usize, &str)]) {
    for (text, line, why) in cases {
        let error = read(text, Scale::Quick).expect_err(text);
        assert_eq!(
            (error.line, error.file.as_str()),
            (*line, "07.toml"),
            "{error}\n{text}"
        );
        assert!(error.why.contains(why), "{error}\n{text}");
    }
}

#[test]
fn line_is_named_when_a_measure_is_wrong() {
    assert_errors(&[
        ("nmae = 3".to_owned(), 1, "unknown field `nmae`"),
        ("number = \"7\"".to_owned(), 1, "invalid type"),
        ("number = 7\n\n[broken".to_owned(), 3, ""),
        ("number = 7".to_owned(), 1, "has no name"),
        (
            HEAD.replace("\"fits\"", "\"nowhere\""),
            3,
            "no environment \"nowhere\"",
        ),
        (
            HEAD.replace("\"web\"", "\"nothing\""),
            3,
            "no workload \"nothing\"",
        ),
        (
            HEAD.replace("\"h2o\"", "\"iis\""),
            1,
            "\"iis\" is no server",
        ),
        (HEAD.replace("\"20%\"", "\"20\""), 3, "no point \"20\""),
        (
            HEAD.replace("servers = [\"headway\", \"h2o\"]", "servers = 3"),
            7,
            "{ quick = …, full = … }",
        ),
        (format!("{HEAD}seconds = 0\n"), 3, "above 0"),
        (
            format!("{HEAD}observe = \"strace\"\n"),
            3,
            "trace or runnable",
        ),
        (format!("{HEAD}order = \"rates\"\n"), 3, "servers or points"),
    ]);
}

#[test]
fn line_is_named_when_a_claim_is_wrong() {
    assert_errors(&[
        (
            format!(
                "{HEAD}[server.x]\nkind = \"headway\"\nhelpers = \"many\"\n[[claim]]\ntext = \"t\"\n"
            ),
            12,
            "either a rule",
        ),
        (
            format!("{HEAD}[[claim]]\ntext = \"t\"\nrule = \"inversion(m, headway, 95%) = 1\"\n"),
            11,
            "comparison is missing",
        ),
        (
            format!("{HEAD}[[claim]]\ntext = \"t\"\nrule = \"inversion(x, headway, 95%) > 1\"\n"),
            11,
            "no measure \"x\"",
        ),
        (
            format!("{HEAD}[[claim]]\ntext = \"t\"\nrule = \"inversion(m, nginx, 95%) > 1\"\n"),
            11,
            "no server \"nginx\"",
        ),
        (
            format!("{HEAD}[[claim]]\ntext = \"t\"\nrule = \"inversion(m, headway, 40%) > 1\"\n"),
            11,
            "no point \"40%\" at any scale",
        ),
        (
            format!("{HEAD}[[claim]]\ntext = \"t\"\nrule = \"sleeps(m, headway, 95%) > 1\"\n"),
            11,
            "observe = \"trace\"",
        ),
        (
            format!(
                "{HEAD}[[claim]]\ntext = \"t\"\nrule = \"mean_ms(m, headway, 95%) < max(mean_ms(m, all, *))\"\n"
            ),
            11,
            "say how large the effect must be",
        ),
    ]);
}

#[test]
fn line_is_named_when_a_table_is_wrong() {
    let table = "[[table]]\ntitle = \"T\"\ncolumns = [\"a\", \"b\"]\n";
    assert_errors(&[
        (
            format!("{HEAD}{table}[[table.ours]]\nrow = \"r\"\ncells = [\"1\"]\n"),
            12,
            "2 columns and 1 cells",
        ),
        (
            format!(
                "{HEAD}{table}[[table.ours]]\nrow = \"r\"\ncells = [\n  \"1\",\n  \"mean(m, a)\",\n]\n"
            ),
            16,
            "character",
        ),
        (
            format!("{HEAD}{table}[[table.paper]]\nrow = \"r\"\ncells = [1, 2, 3]\n"),
            12,
            "2 columns and 3 cells",
        ),
    ]);
}

#[test]
fn every_built_in_study_is_valid_at_both_scales() {
    let studies = super::super::library::embedded();
    let mut numbers = std::collections::BTreeSet::new();
    for scale in Scale::ALL {
        for text in &studies {
            let study = text.at(scale).unwrap_or_else(|error| panic!("{error}"));
            numbers.insert(study.number);
        }
    }
    assert!(
        (1..=13).all(|number| numbers.contains(&number)),
        "{numbers:?}"
    );
}

#[test]
fn environment_can_have_equal_files_instead_of_a_set() {
    let with = |lines: &str| {
        let text = HEAD.replace("\"fits\"", "\"own\"");
        read(
            &format!("{text}[environment.own]\nextends = \"disk\"\n{lines}"),
            Scale::Quick,
        )
    };
    let study = with("files = { count = 3, file-size = \"2kB\" }").expect("a study");
    let environment = &study.measure("m").expect("the measure").environment;
    let files = environment.files.expect("files");
    assert_eq!(
        (files.count, files.file_bytes, environment.set_bytes),
        (3, Some(2_000), 6_000)
    );
    for (lines, why) in [
        (
            "set = \"1MB\"\nfiles = { count = 3, file-size = \"2kB\" }",
            "write one of them",
        ),
        ("files = { count = 0, file-size = \"2kB\" }", "one at least"),
    ] {
        let error = with(lines).expect_err(why);
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn error_has_the_reason_when_a_value_is_out_of_range() {
    let own = |lines: &str| {
        let text = HEAD.replace("\"fits\"", "\"own\"");
        format!("{text}[environment.own]\n{lines}\n")
    };
    let name = |name: &str| HEAD.replace("inversion", name);
    let clients = "[workload.few]\nconnections = 0\n";
    let probe = |keys: &str| format!("{HEAD}probe = {{ {keys} }}\n");
    let stall =
        |keys: &str| format!("{HEAD}seconds = 20\nfault = {{ kind = \"stall\", {keys} }}\n");
    let cases = [
        (name("../x"), "lower-case letters"),
        (name("studies"), "has a file of this name"),
        (
            format!("{HEAD}seconds = inf\n"),
            "none is longer than a day",
        ),
        (format!("{HEAD}warmup = nan\n"), "none is longer than a day"),
        (stall("at = \"15s\", for = \"10s\""), "ends before it does"),
        (stall("at = \"1s\", for = \"0s\""), "takes no time"),
        (
            format!(
                "{}seconds = 20\nfault = {{ kind = \"stall\", at = \"1s\", for = \"1s\" }}\n[environment.own]\nset = \"1MB\"\n",
                HEAD.replace("\"fits\"", "\"own\"")
            ),
            "has no disk",
        ),
        (own("extends = \"disk\"\nlab = false"), "without a lab"),
        (own("set = \"1MB\"\nprofile = \"specweb98\""), "specweb98"),
        (own("set = \"1MB\"\nmemory = \"1MB\""), "8 MiB at least"),
        (own("set = \"1MB\"\ncpu = 0"), "share"),
        (own("set = \"1MB\"\nlink = \"1kbit\""), "bit/s"),
        (
            format!("{}{clients}", HEAD.replace("\"web\"", "\"few\"")),
            "one at least",
        ),
        (probe("count = 0, file-size = \"1kB\", rate = 9"), "above 0"),
        (
            probe("count = 1, file-size = \"1kB\", rate = nan"),
            "above 0",
        ),
    ];
    for (text, why) in cases {
        let error = read(&text, Scale::Quick).expect_err(&text);
        assert!(error.why.contains(why), "{error}\n{text}");
    }
}

#[test]
fn workload_is_over_http2_when_it_says_so() {
    let own = |lines: &str| {
        let text = HEAD.replace("\"web\"", "\"own\"");
        format!("{text}[workload.own]\n{lines}\n")
    };
    let streams = |lines: &str| {
        let study = read(&own(lines), Scale::Full).expect("a study");
        let workload = &study.measure("m").expect("the measure").workload;
        (workload.https, workload.streams)
    };
    let h2 = "scheme = \"https\"\nprotocol = \"h2\"\n";
    assert_eq!(streams("protocol = \"http/1.1\""), (false, None));
    assert_eq!(streams(h2), (true, Some(1)));
    let scaled = format!("{h2}streams = {{ quick = 2, full = 8 }}");
    assert_eq!(streams(&scaled), (true, Some(8)));
    for (lines, why) in [
        ("protocol = \"h2\"".to_owned(), "needs scheme"),
        ("protocol = \"h3\"".to_owned(), "write http/1.1 or h2"),
        ("streams = 8".to_owned(), "streams are for"),
        (format!("{h2}streams = 0"), "at least 1"),
        (format!("{h2}bandwidth = \"1Mbit\""), "no bandwidth"),
        (format!("{h2}first-pause = \"1s\""), "no first-pause"),
    ] {
        let error = read(&own(&lines), Scale::Quick).expect_err(&lines);
        assert!(error.why.contains(why), "{error}");
    }
}

/// Two measures with other servers each, and a table whose columns are the measures.
const COLUMNS: &str = r#"[[measure]]
name = "n"
environment = "disk"
workload = "web"
servers = ["h2o", "nginx"]
points = ["95%"]
[[table]]
title = "By measure"
columns = ["small", "large"]
keys = ["m", "n"]
[[table.ours]]
row = "{server}"
each = ["EACH"]
cell = "rate_rps({column}, {server}, 95%)"
"#;

#[test]
fn table_has_a_row_per_server_when_columns_are_measures() {
    let text = HEAD.to_owned() + &COLUMNS.replace("EACH", "all");
    let study = read(&text, Scale::Quick).expect("a study");
    let table = study.file.table[0].get_ref();
    let rows = super::super::check::rows(&study, table, table.ours[0].get_ref());
    let cells: Vec<&str> = rows.iter().map(|row| row.cells[1].as_str()).collect();
    assert_eq!(cells, ["rate_rps(n, h2o, 95%)"], "the one that both have");
}

#[test]
fn study_is_an_error_when_a_row_has_no_server() {
    let text = HEAD.to_owned()
        + &COLUMNS
            .replace("EACH", "nginx")
            .replace("[\"m\", \"n\"]", "[\"m\", \"m\"]");
    let error = read(&text, Scale::Quick).expect_err("an empty table");
    assert!(
        error.to_string().contains("none of these servers"),
        "{error}"
    );
}
