use super::*;
use crate::study::resolve::Texts;
use crate::study::scaled::Scale;

const COMMON: &str = r#"
[scale.quick]
repeats = 2
seconds = 1
[scale.full]
repeats = 3
seconds = 2
[environment.plain]
lab = false
set = "1MB"
[environment.slow]
set = "1MB"
disk = "ide-5400"
[environment.other]
extends = "plain"
set = "2MB"
[workload.small]
connections = 8
"#;

/// A study with one measure.
fn study(name: &str, rest: &str) -> Study {
    let text = format!(
        "number = 1\nname = {name:?}\n[[measure]]\nname = \"m\"\nworkload = \"small\"\n{rest}\n"
    );
    let texts = Texts {
        name,
        text: &text,
        common: COMMON,
    };
    Study::read(texts, Scale::Quick).expect(name)
}

fn lines(plan: &Plan) -> Vec<String> {
    plan.specs()
        .map(|spec| format!("{} {} {}", spec.server.kind, spec.point_text(), spec.repeat))
        .collect()
}

#[test]
fn capacities_come_first_and_servers_alternate_when_repeats_are_planned() {
    let study = study(
        "s",
        "environment = \"plain\"\nservers = [\"nginx\", \"h2o\"]\npoints = [\"95%\"]",
    );
    let plan = Plan::new(&[study], &[]);
    assert_eq!(
        lines(&plan),
        [
            "nginx capacity 1",
            "h2o capacity 1",
            "nginx capacity 2",
            "h2o capacity 2",
            "nginx 95 % 1",
            "h2o 95 % 1",
            "nginx 95 % 2",
            "h2o 95 % 2",
        ]
    );
    assert_eq!(plan.shared(), 0);
}

#[test]
fn servers_take_turns_at_each_point_when_the_order_is_by_points() {
    let study = study(
        "s",
        "environment = \"plain\"\nservers = [\"nginx\", \"h2o\"]\npoints = [\"10/s\", \"20/s\"]\norder = \"points\"",
    );
    let plan = Plan::new(&[study], &[]);
    assert_eq!(
        lines(&plan),
        [
            "nginx 10/s 1",
            "h2o 10/s 1",
            "nginx 20/s 1",
            "h2o 20/s 1",
            "nginx 10/s 2",
            "h2o 10/s 2",
            "nginx 20/s 2",
            "h2o 20/s 2",
        ]
    );
    let each = plan.groups[0].sessions.iter();
    assert!(
        each.map(|session| session.specs.len()).all(|len| len == 1),
        "each is started again"
    );
}

#[test]
fn measurement_is_made_once_when_two_studies_ask_for_it() {
    let one = study(
        "one",
        "environment = \"plain\"\nservers = [\"nginx\"]\npoints = [\"95%\", \"50%\"]",
    );
    // Other names for the same server and the same environment.
    let two = study(
        "two",
        "environment = \"same\"\nservers = [\"web\"]\npoints = [\"95%\"]\n[server.web]\nkind = \"nginx\"\n[environment.same]\nextends = \"plain\"",
    );
    let three = study(
        "three",
        "environment = \"other\"\nservers = [\"nginx\"]\npoints = [\"95%\"]",
    );
    let alone = Plan::new(std::slice::from_ref(&one), &[]).len();
    let both = Plan::new(&[one.clone(), two], &[]);
    assert_eq!((both.len(), both.shared()), (alone, 2));
    assert_eq!(both.environments().len(), 1);
    let apart = Plan::new(&[one, three], &[]);
    assert_eq!(apart.len(), alone + 4);
    assert_eq!(apart.environments().len(), 2);
}

#[test]
fn capacity_of_another_server_is_measured_for_a_share_of_it() {
    let study = study(
        "s",
        "environment = \"plain\"\nservers = [\"headway\", \"nginx\"]\npoints = [\"80% of best-peer\"]\nrepeats = 1",
    );
    let plan = Plan::new(&[study], &["headway".to_owned()]);
    // A capacity has the scale's repeats, the point its own.
    assert_eq!(
        lines(&plan),
        [
            "nginx capacity 1",
            "nginx capacity 2",
            "headway 80 % of the best 1"
        ]
    );
}

#[test]
fn knees_come_after_capacities_and_before_the_shares_of_them() {
    let study = study(
        "s",
        "environment = \"plain\"\nservers = [\"headway\", \"nginx\"]\npoints = [\"110% of worst knee\"]\nrepeats = 1\norder = \"points\"\n[scale.quick]\nrepeats = 1",
    );
    let plan = Plan::new(std::slice::from_ref(&study), &["headway".to_owned()]);
    assert_eq!(
        lines(&plan),
        [
            "headway capacity 1",
            "nginx capacity 1",
            "headway knee 1",
            "nginx knee 1",
            "headway 110 % of the worst knee 1"
        ]
    );
    // A point that asks for the knee itself is the same search.
    let text = "environment = \"plain\"\nservers = [\"headway\"]\npoints = [\"knee\", \"80% of knee\"]\nrepeats = 1\n[scale.quick]\nrepeats = 1";
    let plan = Plan::new(&[self::study("t", text)], &[]);
    let expected = [
        "headway capacity 1",
        "headway knee 1",
        "headway 80 % of its knee 1",
    ];
    assert_eq!(lines(&plan), expected);
}

#[test]
fn own_capacity_is_measured_when_a_table_or_claim_refers_to_it() {
    let measure = "environment = \"plain\"\nservers = [\"headway\", \"nginx\"]\npoints = [\"80% of nginx\"]\nrepeats = 1";
    let table = "[[table]]\ntitle = \"t\"\ncolumns = [\"capacity\"]\n[[table.ours]]\nrow = \"{server}\"\neach = [\"headway\"]\ncell = \"rate_rps(m, {server}, {column})\"";
    let claim =
        "[[claim]]\ntext = \"c\"\nsource = \"s\"\nrule = \"rate_rps(m, all, capacity) > 1\"";
    let other = "[[claim]]\ntext = \"c\"\nsource = \"s\"\nrule = \"rate_rps(m, headway, *) > 1\"";
    for (reader, has) in [(table, true), (claim, true), (other, false)] {
        let plan = Plan::new(&[study("s", &format!("{measure}\n{reader}"))], &[]);
        let own = lines(&plan).contains(&"headway capacity 1".to_owned());
        assert_eq!(own, has, "{reader}");
    }
}

#[test]
fn fault_is_last_when_a_server_has_other_points() {
    let text = "environment = \"slow\"\nservers = [\"headway\"]\npoints = [\"10/s\"]\nrepeats = 1\nfault = { kind = \"stall\", at = \"100ms\", for = \"100ms\" }
[[measure]]\nname = \"n\"\nworkload = \"small\"\nenvironment = \"slow\"\nservers = [\"headway\"]\npoints = [\"20/s\"]\nrepeats = 1";
    let plan = Plan::new(&[study("s", text)], &[]);
    assert_eq!(lines(&plan), ["headway 20/s 1", "headway 10/s 1"]);
    assert_eq!(plan.groups[0].sessions.len(), 1);
}

#[test]
fn rate_is_a_share_of_the_right_capacity_when_others_are_named() {
    let study = study(
        "s",
        "environment = \"plain\"\nservers = [\"headway\", \"nginx\", \"h2o\"]\npoints = [\"capacity\", \"50%\", \"50% of nginx\", \"50% of best-peer\", \"50% of best\", \"50% of slowest\", \"70/s\", \"knee\", \"110% of worst knee\", \"50% of best knee\", \"50% of best-peer knee\", \"50% of nginx knee\", \"50% of knee\"]",
    );
    let capacity = |server: &ServerChoice| match server.kind.name() {
        "headway" => Ok(1000.0),
        "nginx" => Ok(600.0),
        _ => Err("h2o is not installed".to_owned()),
    };
    let measure = study.measure("m").expect("the measure");
    let of = |point: &str, server: &str| {
        let spec = study.spec(measure, server, point, 1).expect("a point");
        rate(&spec, &capacity)
    };
    let rate = |point: &str, server: &str| of(point, server).map(|request| request.rate);
    assert_eq!(rate("capacity", "headway"), Ok(None));
    assert_eq!(rate("50%", "headway"), Ok(Some(500.0)));
    assert_eq!(rate("50% of nginx", "headway"), Ok(Some(300.0)));
    assert_eq!(rate("50% of best-peer", "headway"), Ok(Some(300.0)));
    assert_eq!(rate("50% of best", "nginx"), Ok(Some(500.0)));
    assert_eq!(rate("50% of slowest", "headway"), Ok(Some(300.0)));
    assert_eq!(rate("70/s", "headway"), Ok(Some(70.0)));
    // The same lookup gives knees where the share is of one.
    assert_eq!(rate("knee", "headway"), Ok(None));
    assert_eq!(rate("110% of worst knee", "headway"), Ok(Some(660.0)));
    assert_eq!(rate("50% of best knee", "nginx"), Ok(Some(500.0)));
    assert_eq!(rate("50% of best-peer knee", "headway"), Ok(Some(300.0)));
    assert_eq!(rate("50% of nginx knee", "headway"), Ok(Some(300.0)));
    assert_eq!(rate("50% of knee", "headway"), Ok(Some(500.0)));
    let passed_over = |point: &str| of(point, "headway").unwrap().without;
    assert_eq!(passed_over("50% of best-peer"), ["h2o is not installed"]);
    assert!(passed_over("50% of nginx").is_empty());
    assert_eq!(rate("50%", "h2o"), Err("h2o is not installed".to_owned()));
}
