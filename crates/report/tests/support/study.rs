//! Invented results of studies: all kinds of tables, figures, claims and troubles.

use headway_latency::analysis::{CdfPoint, Interval, TimelinePoint};
use headway_latency::run::{Format, Verdict};
use headway_latency::study::StudyResult;
use headway_latency::study::result::{
    ClaimOutcome, ClaimResult, Comparison, EnvironmentResult, Figure, Measurement, OurCell, OurRow,
    PaperCell, PaperRow, Repeat, ServerResult, SleepCount, Table, Value,
};

const SERVERS: [(&str, &str); 5] = [
    ("apache", "Apache (prefork)"),
    ("flash", "Flash (preset)"),
    ("new-flash", "New-Flash (preset)"),
    ("headway", "Headway"),
    ("nginx", "nginx (sendfile)"),
];
const POINTS: [&str; 4] = ["20%", "60%", "80%", "95%"];

/// A study with every kind of table and figure.
pub fn full(number: u32) -> StudyResult {
    StudyResult {
        format: Format {
            name: "headway-study".into(),
            version: 1,
        },
        number,
        name: format!("invented-{number}"),
        title: "An invented study of service inversion by relative load".into(),
        source: "Ruan and Pai 2006, section 4.2, Table 4".into(),
        question: "How far do responses leave the order of their sizes as load grows?".into(),
        notes: vec!["0 is the order of sizes, 1 the reverse order.".into()],
        differences: vec!["Linux looks up cached names without a lock.".into()],
        scale: "quick".into(),
        made: "2026-11-21T10:00:00Z".into(),
        complete: true,
        command: [
            "headway-lab",
            "study",
            "run",
            "7",
            "--scale",
            "quick",
            "-o",
            "my results",
        ]
        .map(String::from)
        .into(),
        machine: headway_latency::run::description::Environment {
            host: "bench".into(),
            kernel: "Linux 6.18".into(),
            cpus: 2,
            cpu_model: "A CPU".into(),
            memory_bytes: 24 << 30,
            headway_version: "0.1.0".into(),
            ..Default::default()
        },
        environments: vec![EnvironmentResult {
            name: "disk-bound".into(),
            summary: "400 MB set, ide-5400 with ext4, 130 MB memory, 1 Gbit/s".into(),
            missing: vec!["no link: the kernel has no tbf".into()],
        }],
        servers: servers(),
        measurements: measurements(),
        tables: tables(),
        figures: figures(),
        claims: claims(),
    }
}

fn figures() -> Vec<Figure> {
    let all = SERVERS.map(|(name, _)| name);
    let figure = |kind: &str, servers: &[&str], points: &[&str]| Figure {
        title: format!("A figure of kind {kind}"),
        kind: kind.into(),
        measure: "disk".into(),
        servers: servers.iter().map(|name| (*name).to_owned()).collect(),
        points: points.iter().map(|point| (*point).to_owned()).collect(),
    };
    vec![
        figure("cdf", &["flash"], &POINTS),
        figure("cdf", &all, &["95%"]),
        figure("cdf", &all, &POINTS),
        figure("deciles", &all, &["95%"]),
        figure("ready", &all, &["95%"]),
        figure("runnable", &["apache", "nginx"], &["95%"]),
        figure("timeline", &all, &["95%"]),
        figure("blocked", &all, &["95%"]),
        figure("cdf", &all, &["never measured"]),
    ]
}

fn servers() -> Vec<ServerResult> {
    let known = SERVERS.iter().map(|(name, label)| ServerResult {
        name: (*name).into(),
        label: (*label).into(),
        kind: (*name).into(),
        peer: ["apache", "nginx"].contains(name),
        version: Some("1.2.3".into()),
        unavailable: None,
    });
    let gone = ServerResult {
        name: "h2o".into(),
        label: "h2o".into(),
        kind: "h2o".into(),
        peer: true,
        version: None,
        unavailable: Some("h2o is not installed".into()),
    };
    known.chain([gone]).collect()
}

fn measurements() -> Vec<Measurement> {
    let mut out = Vec::new();
    for (rank, (server, _)) in SERVERS.iter().enumerate() {
        for (level, point) in POINTS.iter().enumerate() {
            out.push(Measurement {
                measure: "disk".into(),
                environment: "disk-bound".into(),
                server: (*server).into(),
                point: (*point).into(),
                repeats: (1..=2).map(|number| repeat(number, rank, level)).collect(),
            });
        }
    }
    out
}

fn repeat(number: u32, rank: usize, level: usize) -> Repeat {
    let slow = 400.0
        * (1.0 + level as f64)
        * [40.0, 60.0, 2.0, 1.0, 12.0][rank]
        * (1.0 + 0.1 * f64::from(number));
    let cdf = (1..=60).map(|step| {
        let share = f64::from(step) / 60.0;
        CdfPoint {
            latency_us: 150.0 + slow * share.powi(4) * 3.0,
            share,
        }
    });
    let even = |row: usize| [25 + (9 - row) as u64, 25, 25, 16 + row as u64];
    let suspect = rank == 4 && level == 3;
    Repeat {
        repeat: number,
        key: format!("3f9a{rank}{level}{number}"),
        failed: (rank == 0 && level == 0 && number == 2)
            .then(|| "the server did not answer within 10 s".into()),
        rate_rps: Some(500.0 * (1.0 + level as f64)),
        verdict: if suspect {
            Verdict::Suspect
        } else {
            Verdict::Valid
        },
        reasons: if suspect {
            vec!["The client's loop was 93 % busy.".into()]
        } else {
            Vec::new()
        },
        values: [
            ("median_ms", slow / 9e3),
            ("mean_ms", slow / 2e3),
            ("p95_ms", slow / 400.0),
            ("sleeps", 12.0),
        ]
        .map(|(name, value)| {
            (
                name.to_owned(),
                Value {
                    value,
                    interval: None,
                },
            )
        })
        .into(),
        cdf: cdf.collect(),
        deciles: Some(std::array::from_fn(even)),
        ready: vec![(1, 800), (2, 300), (8, 40 * (rank as u64 + 1)), (128, 10)],
        runnable: (0..=200)
            .map(|count| (count, if !(9..=180).contains(&count) { 40 } else { 3 }))
            .collect(),
        sleeps: match rank {
            3 => Vec::new(),
            _ => sleeps(),
        },
        timeline: timeline(rank == 1, slow),
        timeline_step_s: 1.0,
    }
}

/// Twenty seconds; a server which stalls answers nothing in six of them.
fn timeline(stalls: bool, slow: f64) -> Vec<TimelinePoint> {
    let point = |second: u32| {
        let is_stalled = stalls && (6..12).contains(&second);
        TimelinePoint {
            at_s: f64::from(second),
            offered_rps: 100.0,
            rate_rps: if is_stalled { 0.0 } else { 100.0 },
            errors: u64::from(second == 13),
            p50_us: (!is_stalled).then_some(200.0 + slow / 9.0),
            p99_us: (!is_stalled).then_some(400.0 + slow),
        }
    };
    (0..20).map(point).collect()
}

fn sleeps() -> Vec<SleepCount> {
    let sleep = |label: &str, call: &str, count: u64| SleepCount {
        label: label.into(),
        call: call.into(),
        count,
        total_ms: count as f64 * 3.0,
        observed_s: 5.0,
    };
    vec![
        sleep("page-io", "sendfile", 620),
        sleep("page-io", "openat", 81),
        sleep("buffer-io", "openat", 33),
        sleep("inode-lock", "newfstatat", 4),
        sleep("event-wait", "epoll_wait", 90_000),
    ]
}

fn tables() -> Vec<Table> {
    let ours = our_rows();
    let printed = |row: &str, cells: [f64; 4]| PaperRow {
        row: row.into(),
        cells: cells.map(PaperCell::Number).into(),
    };
    let columns = ["0.20", "0.60", "0.80", "0.95"].map(String::from).to_vec();
    let lines = Table {
        title: "Table 4: service inversion".into(),
        digits: Some(2),
        corner: "relative load".into(),
        columns: columns.clone(),
        draw: Some("lines".into()),
        paper: vec![
            printed("Apache", [0.14, 0.28, 0.51, 0.58]),
            printed("Flash", [0.25, 0.45, 0.52, 0.58]),
        ],
        ours: ours.clone(),
        ..Table::default()
    };
    let dots = Table {
        title: "Places, each with a panel".into(),
        unit: "ms".into(),
        log: true,
        draw: Some("dots".into()),
        columns: ["in memory", "remote", "many files", "a <place>"]
            .map(String::from)
            .into(),
        ours: ours.clone(),
        ..Table::default()
    };
    let text_table = Table {
        title: "A table with words".into(),
        unit: "ms".into(),
        columns: [
            "median of all",
            "the mean",
            "ninety-fifth percentile",
            "capacity of each server",
        ]
        .map(String::from)
        .into(),
        log: true,
        paper: vec![PaperRow {
            row: "Flash".into(),
            cells: ["–", "over 0.60", "roughly a third", "450.0"]
                .map(|text| PaperCell::Text(text.into()))
                .into(),
        }],
        ours,
        ..Table::default()
    };
    vec![lines, text_table, dots]
}

fn our_rows() -> Vec<OurRow> {
    let cell = |value: f64| OurCell {
        expression: "inversion(disk, flash, 20%)".into(),
        value: Some(value),
        interval: Some(Interval {
            low: value * 0.95,
            high: value * 1.06,
        }),
        ..OurCell::default()
    };
    let row = |name: &str, beside: Option<&str>, values: [f64; 4]| OurRow {
        row: name.into(),
        beside: beside.map(String::from),
        cells: values.map(cell).into(),
        absent: None,
    };
    let mut ours = vec![
        row("Apache (prefork)", Some("Apache"), [0.21, 0.33, 0.44, 0.52]),
        row("Flash (preset)", Some("Flash"), [0.31, 0.36, 0.47, 0.59]),
        row("Headway", None, [0.29, 0.31, 0.33, 0.34]),
        OurRow {
            row: "Flashpache".into(),
            absent: Some("the module is not there yet".into()),
            ..OurRow::default()
        },
    ];
    ours[0].cells[1] = OurCell {
        missing: Some("not at this scale".into()),
        ..OurCell::default()
    };
    ours[1].cells[3].verdict = Verdict::Suspect;
    ours[1].cells[3].reasons = vec!["The client's loop was 93 % busy.".into()];
    ours
}

fn claims() -> Vec<ClaimResult> {
    let claim = |outcome: ClaimOutcome, ending: &str| ClaimResult {
        text: format!("A claim about the service inversion of Flash that {ending}"),
        source: "2006, 4.2: 0.58".into(),
        rule: Some("inversion(disk, flash, 95%) > 0.5".into()),
        expected: "confirmed".into(),
        outcome,
        explain: Some("Linux holds no lock during a disk read.".into()),
        comparisons: vec![Comparison {
            text: "inversion(disk, flash, 95%) > 0.5".into(),
            left: Some(0.59),
            left_interval: Some(Interval {
                low: 0.57,
                high: 0.61,
            }),
            operator: ">".into(),
            right: Some(0.5),
            support: Some(0.987),
            outcome,
            ..Comparison::default()
        }],
        ..ClaimResult::default()
    };
    let untested = ClaimResult {
        text: "Haboob's median is far above that of all others".into(),
        source: "D 2.7".into(),
        outcome: ClaimOutcome::Untestable,
        why: vec!["Haboob needs the Java of 2001".into()],
        ..ClaimResult::default()
    };
    let mut open = claim(ClaimOutcome::Inconclusive, "is not decided");
    open.why = vec!["the interval holds both".into()];
    open.caveats = vec!["a single repeat".into()];
    vec![
        claim(ClaimOutcome::Confirmed, "confirmed"),
        claim(ClaimOutcome::NotConfirmed, "not confirmed"),
        open,
        untested,
    ]
}
