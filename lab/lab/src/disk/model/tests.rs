use super::super::spec::Model;
use super::*;

const PAGE_BYTES: u64 = 4096;
const NS_PER_MS: f64 = 1e6;

fn job(id: u64, arrived_ns: u64, offset_bytes: u64, length_bytes: u64) -> Job {
    Job {
        id,
        arrived_ns,
        offset_bytes,
        length_bytes,
        write: false,
    }
}

/// Reads one after the other, each as soon as the last one has ended; the services.
fn one_by_one(device: &mut Device, offsets: impl Iterator<Item = u64>, length: u64) -> Vec<u64> {
    let mut now_ns = 0;
    let run = |(id, offset)| {
        device.arrive(job(id, now_ns, offset, length));
        let at_ns = device.ready_ns().expect("one waits");
        let started = device.start(at_ns, 1.0).expect("one waits");
        now_ns = started.finish_ns;
        started.finish_ns - started.start_ns
    };
    (0..).zip(offsets).map(run).collect()
}

/// Pages at random positions in the first `range_bytes`.
fn random_offsets(range_bytes: u64, count: usize) -> impl Iterator<Item = u64> {
    let mut random = Random::new(99);
    (0..count).map(move |_| random.below(range_bytes / PAGE_BYTES) * PAGE_BYTES)
}

fn mean_ms(services_ns: &[u64]) -> f64 {
    services_ns.iter().sum::<u64>() as f64 / services_ns.len() as f64 / NS_PER_MS
}

fn spindle() -> Spindle {
    Spindle::default()
}

fn device(model: &Model, seed: u64) -> Device {
    Device::new(&model.mechanics(), seed)
}

#[test]
fn seek_curve_passes_through_its_three_points() {
    let spindle = spindle();
    let near = |stroke: f64, expected: f64| {
        let found = seek_ms(&spindle, stroke);
        assert!((found - expected).abs() < 1e-9, "{stroke}: {found}");
    };
    near(0.0, spindle.seek_track_ms);
    near(1.0 / 3.0, spindle.seek_average_ms);
    near(1.0, spindle.seek_full_ms);
    let curve: Vec<f64> = (0..=100)
        .map(|part| seek_ms(&spindle, f64::from(part) / 100.0))
        .collect();
    assert!(curve.is_sorted());
}

#[test]
fn random_read_costs_seek_and_half_a_rotation() {
    let spindle = spindle();
    let services = one_by_one(
        &mut device(&Model::Ide5400, 5),
        random_offsets(spindle.capacity_bytes, 20_000),
        PAGE_BYTES,
    );
    // The mean of the curve over the distances of two random positions, whose density is 2 (1 - x).
    let steps = 10_000;
    let seek_ms: f64 = (0..steps)
        .map(|step| (f64::from(step) + 0.5) / f64::from(steps))
        .map(|stroke| seek_ms(&spindle, stroke) * 2.0 * (1.0 - stroke) / f64::from(steps))
        .sum();
    let transfer_ms = PAGE_BYTES as f64 / spindle.bytes_per_second as f64 * 1e3;
    let expected_ms = spindle.overhead_us / 1e3 + seek_ms + 60e3 / 5400.0 / 2.0 + transfer_ms;
    let found_ms = mean_ms(&services);
    assert!(
        (found_ms / expected_ms - 1.0).abs() < 0.02,
        "{found_ms} {expected_ms}"
    );
}

#[test]
fn seeks_are_short_when_the_files_are_few() {
    let mean = |bytes| {
        let services = one_by_one(
            &mut device(&Model::Ide5400, 5),
            random_offsets(bytes, 5_000),
            PAGE_BYTES,
        );
        mean_ms(&services)
    };
    let (small_ms, whole_ms) = (mean(400 << 20), mean(spindle().capacity_bytes));
    assert!(small_ms < 0.6 * whole_ms, "{small_ms} {whole_ms}");
    // Half a turn is left whatever the distance.
    assert!(small_ms > 60e3 / 5400.0 / 2.0, "{small_ms}");
}

#[test]
fn rotation_delay_is_uniform_on_one_track() {
    let spindle = Spindle {
        overhead_us: 0.0,
        seek_track_ms: 0.0,
        read_ahead_bytes: 0,
        ..spindle()
    };
    let mechanics = Mechanics::Spindle(spindle);
    // Backwards on one track, so that the buffer never has it.
    let offsets = (0..2_000).map(|turn: u64| (2_000 - turn) % 80 * PAGE_BYTES);
    let services = one_by_one(&mut Device::new(&mechanics, 1), offsets, 512);
    let turn_ns = 60e9 / 5400.0;
    assert!(
        services
            .iter()
            .all(|&service| (service as f64) < turn_ns * 1.01)
    );
}

#[test]
fn sequential_reads_cost_only_the_transfer() {
    let length = 128 << 10;
    let offsets = (0..500).map(|block| block * length);
    let services = one_by_one(&mut device(&Model::Ide5400, 5), offsets, length);
    let expected_ms = length as f64 / spindle().bytes_per_second as f64 * 1e3;
    let found_ms = mean_ms(&services[1..]);
    assert!(
        (found_ms / expected_ms - 1.0).abs() < 0.05,
        "{found_ms} {expected_ms}"
    );
}

#[test]
fn buffer_answers_when_the_drive_has_read_ahead() {
    let mut device = device(&Model::Ide5400, 5);
    device.arrive(job(0, 0, 1 << 20, PAGE_BYTES));
    let first = device.start(0, 1.0).expect("one waits");
    // A tenth of a second later all that it reads ahead is there.
    let later_ns = first.finish_ns + 100_000_000;
    device.arrive(job(1, later_ns, (1 << 20) + (256 << 10), PAGE_BYTES));
    let ahead = device.start(later_ns, 1.0).expect("one waits");
    assert!(ahead.finish_ns - later_ns < 500_000, "{ahead:?}");
    device.arrive(job(2, ahead.finish_ns, (1 << 20) + (4 << 20), PAGE_BYTES));
    let beyond = device.start(ahead.finish_ns, 1.0).expect("one waits");
    assert!(beyond.finish_ns - beyond.start_ns > 500_000, "{beyond:?}");
}

#[test]
fn elevator_chooses_the_nearest_request_upwards() {
    let mut device = device(&Model::Ide5400, 5);
    let offsets_mib = [50, 10, 70, 30];
    for (id, offset) in (0..).zip(offsets_mib) {
        device.arrive(job(id, 0, offset << 20, PAGE_BYTES));
    }
    let mut order = Vec::new();
    while let Some(at_ns) = device.ready_ns() {
        let started = device.start(at_ns, 1.0).expect("one waits");
        order.push(started.job.offset_bytes >> 20);
        if order.len() == 2 {
            // Below the head by then: its turn comes after the top.
            device.arrive(job(4, started.finish_ns, 20 << 20, PAGE_BYTES));
        }
    }
    assert_eq!(order, [10, 30, 50, 70, 20]);
}

#[test]
fn elevator_chooses_the_oldest_request_after_its_deadline() {
    let mut device = device(&Model::Ide5400, 5);
    device.arrive(job(0, 0, 40 << 20, PAGE_BYTES));
    device.arrive(job(1, 1, 10 << 20, PAGE_BYTES));
    let started = device.start(ELEVATOR_DEADLINE_NS, 1.0).expect("two wait");
    assert_eq!(started.job.id, 0);
}

#[test]
fn elevator_chooses_one_request_per_batch_by_age_when_all_are_late() {
    let mut device = device(&Model::Ide5400, 5);
    // The older the higher.
    let many = 3 * u64::from(ELEVATOR_BATCH);
    let mut waiting: std::collections::BTreeSet<u64> = (0..many).collect();
    for id in 0..many {
        device.arrive(job(id, 0, (many - id) << 20, PAGE_BYTES));
    }
    let mut at_ns = ELEVATOR_DEADLINE_NS;
    let mut by_age = 0;
    while let Some(oldest) = waiting.first().copied() {
        let started = device.start(at_ns, 1.0).expect("one waits");
        by_age += u32::from(started.job.id == oldest);
        waiting.remove(&started.job.id);
        at_ns = started.finish_ns;
    }
    assert!((3..6).contains(&by_age), "{by_age} of {many} went by age");
}

#[test]
fn requests_are_served_in_order_without_an_elevator() {
    let mechanics = Mechanics::Spindle(Spindle {
        queue: Queue::Fifo,
        ..spindle()
    });
    let mut device = Device::new(&mechanics, 0);
    for (id, offset) in (0..).zip([50, 10, 70]) {
        device.arrive(job(id, 0, offset << 20, PAGE_BYTES));
    }
    let order: Vec<u64> = std::iter::from_fn(|| device.start(device.ready_ns()?, 1.0))
        .map(|started| started.job.id)
        .collect();
    assert_eq!(order, [0, 1, 2]);
}

#[test]
fn spindle_serves_one_request_at_a_time() {
    let mut device = device(&Model::Ide5400, 5);
    for (id, offset) in (0..).zip(random_offsets(1 << 30, 64)) {
        device.arrive(job(id, 0, offset, PAGE_BYTES));
    }
    let mut end_ns = 0;
    while let Some(at_ns) = device.ready_ns() {
        let started = device.start(at_ns, 1.0).expect("one waits");
        assert!(started.start_ns >= end_ns);
        end_ns = started.finish_ns;
    }
}

#[test]
fn idle_volume_has_the_mean_and_deviation_of_its_latency() {
    let parallel = Parallel {
        latency_us: 1000.0,
        variation: 0.4,
        parallelism: 4,
        bytes_per_second: u64::MAX,
        overhead_us: 0.0,
    };
    let mut device = Device::new(&Mechanics::Parallel(parallel), 2);
    let services = one_by_one(&mut device, random_offsets(1 << 30, 50_000), PAGE_BYTES);
    let mean = mean_ms(&services);
    let square = services
        .iter()
        .map(|&service| (service as f64 / NS_PER_MS - mean).powi(2));
    let deviation = (square.sum::<f64>() / services.len() as f64).sqrt();
    assert!((mean - 1.0).abs() < 0.01, "{mean}");
    assert!((deviation - 0.4).abs() < 0.02, "{deviation}");
}

#[test]
fn parallel_disk_serves_as_many_requests_as_it_has_slots() {
    let parallel = Parallel {
        latency_us: 1000.0,
        variation: 0.0,
        parallelism: 4,
        bytes_per_second: u64::MAX,
        overhead_us: 0.0,
    };
    let mut device = Device::new(&Mechanics::Parallel(parallel), 2);
    (0..10).for_each(|id| device.arrive(job(id, 0, 0, 1)));
    let starts: Vec<u64> = std::iter::from_fn(|| device.start(device.ready_ns()?, 1.0))
        .map(|started| started.start_ns / 1_000_000)
        .collect();
    assert_eq!(starts, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]);
}

#[test]
fn parallel_requests_share_the_bandwidth() {
    let mechanics = Model::SsdSata.mechanics();
    let Mechanics::Parallel(parallel) = &mechanics else {
        panic!("{mechanics:?}");
    };
    let mut device = Device::new(&mechanics, 2);
    let length = 128 << 10;
    (0..1000).for_each(|id| device.arrive(job(id, 0, id * length, length)));
    let ends = std::iter::from_fn(|| device.start(device.ready_ns()?, 1.0));
    let end_ns = ends.map(|started| started.finish_ns).max().expect("many");
    let rate = 1000.0 * length as f64 / (end_ns as f64 / 1e9);
    assert!(rate <= parallel.bytes_per_second as f64, "{rate}");
    assert!(rate > 0.9 * parallel.bytes_per_second as f64, "{rate}");
}

#[test]
fn slow_fault_multiplies_the_service_time() {
    for model in Model::NAMED {
        let service = |slower| {
            let mut device = device(&model, 3);
            device.arrive(job(0, 0, 30 << 20, PAGE_BYTES));
            let started = device.start(0, slower).expect("one waits");
            started.finish_ns as f64
        };
        let ratio = service(3.0) / service(1.0);
        assert!((ratio - 3.0).abs() < 0.001, "{model}: {ratio}");
    }
}

#[test]
fn delays_are_the_same_when_the_seed_is() {
    for model in Model::NAMED {
        let run = |seed| {
            one_by_one(
                &mut device(&model, seed),
                random_offsets(1 << 30, 100),
                PAGE_BYTES,
            )
        };
        assert_eq!(run(7), run(7), "{model}");
        assert_ne!(run(7), run(8), "{model}");
    }
}

#[test]
fn named_models_differ_by_orders_of_magnitude_when_they_are_read_at_random() {
    let means = Model::NAMED.map(|model| {
        let services = one_by_one(
            &mut device(&model, 1),
            random_offsets(1 << 30, 2_000),
            PAGE_BYTES,
        );
        mean_ms(&services)
    });
    let [spindle, sata, nvme, network] = means;
    assert!((6.0..12.0).contains(&spindle), "{means:?}");
    assert!((0.08..0.15).contains(&sata), "{means:?}");
    assert!((0.06..0.1).contains(&nvme), "{means:?}");
    assert!((0.9..1.1).contains(&network), "{means:?}");
}
