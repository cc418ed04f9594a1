//! A run directory from its creation to a damaged copy.

use crate::support;
use headway_latency::run::{Kind, Point, ProfileInfo, write_description};
use headway_latency::{
    Analyzer, OpenError, Outcome, Row, Run, RunDescription, RunWriter, WriteError,
};
use std::fs;
use std::path::Path;
use std::process::Command;
use support::{description, finished, rows};

fn read(run: &Run) -> Result<Vec<Row>, OpenError> {
    let mut all = Vec::new();
    for batch in run.rows()? {
        all.extend(batch?);
    }
    Ok(all)
}

#[test]
fn rows_are_the_same_when_written_and_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run");
    let rows = rows(20_000);
    finished(&path, &rows);
    let run = Run::open(&path).expect("a run");
    assert!(run.description().complete);
    assert_eq!(
        run.description()
            .summary
            .as_ref()
            .map(|summary| summary.requests),
        Some(18_000)
    );
    assert_eq!(read(&run).expect("rows"), rows);
    let mut names: Vec<_> = fs::read_dir(&path)
        .expect("a directory")
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["cells.parquet", "requests.parquet", "run.json"]);
}

/// Files of before a row had `handshake_ns`.
#[test]
fn rows_of_version_1_are_read() {
    let old = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/version-1");
    let directory = tempfile::tempdir().expect("a directory");
    let copy = |name: &str, to: &str| {
        fs::copy(old.join(name), directory.path().join(to)).expect("a file of version 1")
    };
    copy("run.json", "run.json");
    copy("requests.parquet", "requests.parquet");
    let run = Run::open(directory.path()).expect("a run");
    let found = read(&run).expect("rows");
    assert_eq!(found.len(), 20);
    let good = |row: &Row| row.status == 200 && row.bytes == 692 && row.handshake_ns == 0;
    assert!(found.iter().all(good), "{:?}", found[0]);

    // The same run, had it been killed while it wrote its fourth row.
    let text = fs::read_to_string(old.join("run.json")).expect("a description");
    let killed = text.replace("\"complete\": true", "\"complete\": false");
    assert_ne!(killed, text);
    fs::write(directory.path().join("run.json"), killed).expect("a file");
    copy("requests.spool", "requests.spool");
    let found = read(&Run::open(directory.path()).expect("a run")).expect("rows");
    let ordinals: Vec<u32> = found.iter().map(|row| row.ordinal).collect();
    assert_eq!(ordinals, [0, 1, 2]);
    assert!(found.iter().all(|row| row.end_ns == row.start_ns + 800));
}

#[test]
fn cells_file_equals_the_cells_of_the_rows() {
    let directory = tempfile::tempdir().expect("a directory");
    finished(directory.path(), &rows(20_000));
    let run = Run::open(directory.path()).expect("a run");
    let kept = run.cells().expect("cells").sorted();
    fs::remove_file(directory.path().join("cells.parquet")).expect("it is there");
    assert_eq!(run.cells().expect("cells from the rows").sorted(), kept);
    assert_eq!(kept.iter().map(|(_, count)| count).sum::<u64>(), 18_000);
}

#[test]
fn rows_are_readable_when_the_run_was_killed_in_the_middle_of_a_record() {
    let directory = tempfile::tempdir().expect("a directory");
    let rows = rows(3_000);
    let mut writer =
        RunWriter::create(directory.path(), &description()).expect("an empty directory");
    writer.append(&rows).expect("room on the disk");
    drop(writer);
    let spool = directory.path().join("requests.spool");
    let whole = fs::read(&spool).expect("the spool");
    assert_eq!(whole.len(), 3_001 * Row::BYTES);
    for (kept, expected) in [
        (3_001 * Row::BYTES - 1, 2_999),
        (11 * Row::BYTES + 1, 10),
        (Row::BYTES, 0),
        (Row::BYTES - 1, 0),
        (63, 0),
        (0, 0),
    ] {
        fs::write(&spool, &whole[..kept]).expect("a file");
        let run = Run::open(directory.path()).expect("a run");
        assert!(!run.description().complete);
        assert_eq!(read(&run).expect("rows"), rows[..expected], "{kept} bytes");
    }
    let mut zeroed = whole[..21 * Row::BYTES].to_vec();
    zeroed.extend([0; Row::BYTES * 5 + 7]);
    fs::write(&spool, zeroed).expect("a file");
    assert_eq!(
        read(&Run::open(directory.path()).expect("a run")).expect("rows"),
        rows[..20]
    );
}

#[test]
fn damage_is_an_error_when_whole_records_follow_it_in_the_spool() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut writer =
        RunWriter::create(directory.path(), &description()).expect("an empty directory");
    writer.append(&rows(100)).expect("room on the disk");
    drop(writer);
    let spool = directory.path().join("requests.spool");
    let mut bytes = fs::read(&spool).expect("the spool");
    bytes[Row::BYTES * 50 + 3] ^= 1;
    fs::write(&spool, &bytes).expect("a file");
    let error = read(&Run::open(directory.path()).expect("a run")).expect_err("damage");
    assert!(
        error.to_string().contains("record 49 is damaged"),
        "{error}"
    );
    bytes[0] ^= 1;
    fs::write(&spool, &bytes).expect("a file");
    let error = read(&Run::open(directory.path()).expect("a run")).expect_err("foreign");
    assert!(error.to_string().contains("not a spool"), "{error}");
}

#[test]
fn file_is_an_error_when_truncated_anywhere() {
    let directory = tempfile::tempdir().expect("a directory");
    finished(directory.path(), &rows(5_000));
    let run = Run::open(directory.path()).expect("a run");
    for name in ["requests.parquet", "cells.parquet"] {
        let path = directory.path().join(name);
        let whole = fs::read(&path).expect("a file");
        for kept in [
            0,
            3,
            4,
            8,
            100,
            whole.len() / 2,
            whole.len() - 9,
            whole.len() - 8,
            whole.len() - 1,
        ] {
            fs::write(&path, &whole[..kept]).expect("a file");
            let error = if name.starts_with('r') {
                read(&run).err()
            } else {
                run.cells().err()
            };
            let text = error
                .unwrap_or_else(|| panic!("{name} of {kept} bytes was read"))
                .to_string();
            assert!(text.contains(name) && text.contains("truncated"), "{text}");
        }
        fs::write(&path, whole).expect("a file");
    }
}

#[test]
fn file_is_an_error_when_a_byte_differs() {
    let directory = tempfile::tempdir().expect("a directory");
    finished(directory.path(), &rows(300));
    let run = Run::open(directory.path()).expect("a run");
    let path = directory.path().join("requests.parquet");
    let whole = fs::read(&path).expect("a file");
    assert_eq!(read(&run).expect("rows").len(), 300);
    for at in (0..whole.len()).step_by(3) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(&path, damaged).expect("a file");
        assert!(
            matches!(read(&run), Err(OpenError::Damaged { .. })),
            "byte {at}"
        );
    }
}

#[test]
fn file_is_an_error_when_it_is_another_parquet_file() {
    let directory = tempfile::tempdir().expect("a directory");
    finished(directory.path(), &rows(100));
    let run = Run::open(directory.path()).expect("a run");
    fs::copy(
        directory.path().join("cells.parquet"),
        directory.path().join("requests.parquet"),
    )
    .expect("a copy");
    let error = read(&run).expect_err("cells are no rows").to_string();
    assert!(
        error.contains("\"headway-cells\", expected \"headway-requests\""),
        "{error}"
    );
    fs::write(directory.path().join("requests.parquet"), foreign_parquet()).expect("a file");
    let error = read(&run).expect_err("a foreign file").to_string();
    assert!(error.contains("headway did not write"), "{error}");
    fs::remove_file(directory.path().join("requests.parquet")).expect("it is there");
    assert!(
        read(&run)
            .expect_err("no file")
            .to_string()
            .contains("missing")
    );
}

#[test]
fn rows_are_an_error_when_they_are_of_another_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, other) = (directory.path().join("one"), directory.path().join("other"));
    finished(&one, &rows(1_000));
    finished(&other, &rows(2_000));
    let run = Run::open(&one).expect("a run");
    assert_eq!(run.analysis().expect("figures").counts.requests, 900);
    fs::copy(other.join("requests.parquet"), one.join("requests.parquet")).expect("a copy");
    let error = run.analysis().expect_err("rows of the other").to_string();
    assert!(
        error.contains("1800 requests") && error.contains("is it of another run?"),
        "{error}"
    );
}

/// A Parquet file with one column of ours and none of our keys.
fn foreign_parquet() -> Vec<u8> {
    use parquet::data_type::Int64Type;
    use parquet::file::writer::SerializedFileWriter;
    let schema =
        parquet::schema::parser::parse_message_type("message m { required int64 start_ns; }");
    let schema = std::sync::Arc::new(schema.expect("a schema"));
    let mut bytes = Vec::new();
    let mut file =
        SerializedFileWriter::new(&mut bytes, schema, Default::default()).expect("memory");
    let mut group = file.next_row_group().expect("memory");
    let mut column = group.next_column().expect("memory").expect("a column");
    column
        .typed::<Int64Type>()
        .write_batch(&[1, 2, 3], None, None)
        .expect("memory");
    column.close().expect("memory");
    group.close().expect("memory");
    file.close().expect("memory");
    bytes
}

#[test]
fn special_file_is_an_error_in_place_of_a_run_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run");
    finished(&path, &rows(1_000));
    for name in ["requests.parquet", "cells.parquet"] {
        fs::remove_file(path.join(name)).expect("a finished run has it");
        // Opening a FIFO would wait for a writer that never comes.
        let made = Command::new("mkfifo").arg(path.join(name)).status();
        assert!(made.expect("coreutils").success());
    }
    let run = Run::open(&path).expect("the description is a file");
    for answer in [run.rows().err(), run.cells().err()] {
        let text = answer.expect("a refusal").to_string();
        assert!(text.contains("no regular file"), "{text}");
    }
    // Without end, and not a file either.
    fs::remove_file(path.join("run.json")).expect("it is there");
    std::os::unix::fs::symlink("/dev/zero", path.join("run.json")).expect("a link");
    assert!(matches!(Run::open(&path), Err(OpenError::Io { .. })));
}

#[test]
fn description_is_an_error_when_newer_foreign_or_malformed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.json");
    let open = |text: &str| {
        fs::write(&path, text).expect("a file");
        Run::open(directory.path())
    };
    let newer =
        r#"{"format": {"name": "headway-run", "version": 2}, "kind": "a kind of the future"}"#;
    assert!(matches!(
        open(newer),
        Err(OpenError::Newer { found: 2, .. })
    ));
    for text in [
        "",
        "{",
        "[]",
        "{}",
        r#"{"format": {"name": "headway-analysis", "version": 1}}"#,
        r#"{"format": {"name": "headway-run", "version": 1}, "complete": "yes"}"#,
    ] {
        assert!(
            matches!(open(text), Err(OpenError::Damaged { .. })),
            "{text}"
        );
    }
    let unknown = r#"{"format": {"name": "headway-run", "version": 1}, "field of the future": 3, "load": {"rate_rps": 5}}"#;
    assert_eq!(
        open(unknown).expect("a run").description().load.rate_rps,
        Some(5.0)
    );
    assert!(matches!(
        Run::open("/no/such/run"),
        Err(OpenError::Absent(_))
    ));
    fs::remove_file(&path).expect("it is there");
    assert!(matches!(
        Run::open(directory.path()),
        Err(OpenError::NotARun(_))
    ));
}

#[test]
fn description_is_the_same_when_written_and_read_as_json() {
    let described = description();
    let text = serde_json::to_string(&described).expect("JSON");
    assert_eq!(
        serde_json::from_str::<RunDescription>(&text).expect("a description"),
        described
    );
}

#[test]
fn directory_is_not_overwritten_when_it_holds_a_finished_run_or_other_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let create = |name: &str| RunWriter::create(&directory.path().join(name), &description());
    let folder = |name: &str| fs::create_dir(directory.path().join(name)).expect("a directory");
    fs::write(directory.path().join("file"), "mine").expect("a file");
    assert!(matches!(create("file"), Err(WriteError::NoDirectory(_))));
    folder("letters");
    fs::write(directory.path().join("letters/one"), "dear").expect("a file");
    assert!(matches!(create("letters"), Err(WriteError::Foreign(_))));
    finished(&directory.path().join("done"), &rows(10));
    assert!(matches!(create("done"), Err(WriteError::Finished(_))));
    let profile = RunDescription {
        kind: Kind::Profile,
        ..description()
    };
    write_description(&directory.path().join("profile"), &profile, false)
        .expect("room on the disk");
    assert!(matches!(create("profile"), Err(WriteError::OtherKind(_))));
    let first = create("busy").expect("a new directory");
    assert!(matches!(create("busy"), Err(WriteError::Busy(_))));
    first.finish(&description()).expect("room on the disk");
    folder("newer");
    fs::write(
        directory.path().join("newer/run.json"),
        r#"{"format": {"name": "headway-run", "version": 9}}"#,
    )
    .expect("a file");
    assert!(matches!(
        create("newer"),
        Err(WriteError::Unreadable(OpenError::Newer { .. }))
    ));
}

#[test]
fn run_replaces_an_incomplete_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut writer =
        RunWriter::create(directory.path(), &description()).expect("an empty directory");
    writer.append(&rows(50)).expect("room on the disk");
    drop(writer);
    let again = RunWriter::create(directory.path(), &description()).expect("an incomplete run");
    again.finish(&description()).expect("room on the disk");
    assert!(
        read(&Run::open(directory.path()).expect("a run"))
            .expect("rows")
            .is_empty()
    );
}

#[test]
fn finished_points_are_listed_when_a_profile_is_opened() {
    let directory = tempfile::tempdir().expect("a directory");
    let point = |relative, name: &str, done| Point {
        relative,
        directory: name.into(),
        done,
        repeat: 1,
        rate_rps: 10.0,
        of_client: false,
        of_knee: false,
    };
    let points = vec![
        point(0.2, "points/0.20-1", true),
        point(0.4, "points/0.40-1", false),
    ];
    let profile = ProfileInfo {
        capacity_rps: Some(50.0),
        client_bound: None,
        points,
    };
    let described = RunDescription {
        kind: Kind::Profile,
        profile: Some(profile),
        ..description()
    };
    write_description(directory.path(), &described, false).expect("room on the disk");
    finished(&directory.path().join("points/0.20-1"), &rows(10));
    let run = Run::open(directory.path()).expect("a profile");
    assert_eq!(run.points().expect("points").len(), 1);
    assert!(read(&run).expect("no rows of its own").is_empty());
}

#[test]
fn sums_have_a_largest_value_when_a_file_names_numbers_that_cannot_be_added() {
    let mut description = description();
    description.rows_dropped = u64::MAX;
    let mut analyzer = Analyzer::new(&description);
    for error in [
        Outcome::Ok,
        Outcome::Ok,
        Outcome::TimedOut,
        Outcome::TimedOut,
    ] {
        analyzer.push(&Row {
            bytes: u64::MAX,
            error,
            ..rows(1)[0]
        });
    }
    let other = analyzer.clone();
    analyzer.merge(&other);
    let found = analyzer.finish();
    assert!(found.withheld);
    assert_eq!(found.counts.requests, 8);
    assert_eq!(
        found.throughput_bytes_per_s,
        u64::MAX as f64 / found.duration_s
    );
}
