use super::*;

pub(super) fn settings(demand: Demand) -> Settings {
    Settings {
        urls: vec!["http://127.0.0.1:8080/a".parse().expect("an address")],
        work: WorkSource::Addresses,
        method: Method::Get,
        headers: Vec::new(),
        body: Vec::new(),
        host: None,
        unix_socket: None,
        tls: TlsOptions::default(),
        protocol: Protocol::Http1,
        proxy_version: None,
        directories: None,
        demand,
        connections: None,
        requests_per_connection: None,
        timeout: None,
        think: Duration::ZERO,
        first_pause: Duration::ZERO,
        bandwidth_bits_per_s: None,
        warmup: None,
        cooldown: Duration::ZERO,
        duration: None,
        requests: None,
        seed: 1,
        sources: Vec::new(),
        verify: false,
        cookies: false,
        agent: None,
        label: None,
        cpus: Vec::new(),
        threads: None,
        command: Vec::new(),
    }
}

pub(super) fn open(schedule: &str) -> Settings {
    settings(Demand::Open {
        schedule: schedule.parse().expect("a schedule"),
        arrivals: Arrivals::Poisson,
    })
}

#[test]
fn defaults_are_64_keep_alive_connections_and_10_s_when_nothing_is_set() {
    let closed = settings(Demand::Closed).prepare().expect("a plan").plan;
    assert!(
        matches!(closed.mode, Mode::Closed { connections } if connections <= CONNECTIONS_CLOSED)
    );
    assert_eq!(closed.requests_per_connection, None);
    assert_eq!(closed.timeout, Some(TIMEOUT_CLOSED));
    assert_eq!(
        (closed.warmup, closed.stop.duration),
        (WARMUP, Some(DURATION))
    );
    let open = open("100:1s").prepare().expect("a plan").plan;
    assert_eq!(open.timeout, Some(TIMEOUT_OPEN));
}

#[test]
fn all_requests_of_a_timeout_may_wait_when_connections_are_few() {
    let waiting_max = |change: fn(&mut Settings)| {
        let mut asked = open("100:10s,200-2000:5s");
        (asked.connections, asked.timeout) = (Some(8), Some(Duration::from_secs(4)));
        change(&mut asked);
        match asked.prepare().expect("a plan").plan.mode {
            Mode::Open { waiting_max, .. } => waiting_max,
            Mode::Closed { .. } => panic!("a schedule makes an open loop"),
        }
    };
    assert_eq!(waiting_max(|_| ()), 13_000);
    // Without a timeout, those of the whole run: 16 s with the warm-up.
    let whole = waiting_max(|asked| asked.timeout = Some(Duration::ZERO));
    assert_eq!(whole, 49_000);
    let huge = waiting_max(|asked| asked.demand = open("9000000:1s").demand);
    assert_eq!(huge, WAITING_MAX);
}

#[test]
fn warm_up_comes_before_the_schedule_when_there_are_steps() {
    let prepared = open("100:10s,200-0:5s").prepare().expect("a plan");
    let Mode::Open { schedule, .. } = &prepared.plan.mode else {
        panic!("a schedule makes an open loop");
    };
    let lengths: Vec<u64> = schedule
        .segments
        .iter()
        .map(|one| one.length.as_secs())
        .collect();
    assert_eq!(lengths, [1, 10, 5, 0]);
    assert_eq!(prepared.plan.stop.duration, Some(Duration::from_secs(15)));
    assert_eq!(prepared.description.load.schedule.len(), 2);
    assert_eq!(prepared.description.load.rate_rps, Some(100.0));
}

#[test]
fn warm_up_is_zero_when_a_number_of_requests_is_set() {
    let mut counted = settings(Demand::Closed);
    counted.requests = Some(10);
    let plan = counted.prepare().expect("a plan").plan;
    assert_eq!((plan.warmup, plan.stop.duration), (Duration::ZERO, None));
    counted.warmup = Some(WARMUP);
    assert_eq!(counted.prepare().expect("a plan").plan.warmup, WARMUP);
}

#[test]
fn timeout_is_for_ever_when_it_is_zero() {
    let mut patient = settings(Demand::Closed);
    patient.timeout = Some(Duration::ZERO);
    assert_eq!(patient.prepare().expect("a plan").plan.timeout, None);
}

#[test]
fn contradicting_settings_are_a_usage_error() {
    type Change = fn(&mut Settings);
    let cases: &[(Change, &str)] = &[
        (|s| s.urls.clear(), "no server"),
        (|s| s.verify = true, "--fileset"),
        (|s| s.requests = Some(0), "--requests 0"),
        (
            |s| (s.requests, s.cooldown) = (Some(9), WARMUP),
            "--cooldown follows",
        ),
        (
            |s| (s.demand, s.cooldown) = (open("9-0:1s").demand, WARMUP),
            "which is 0",
        ),
        (|s| s.connections = Some(0), "--connections 0"),
        (|s| s.duration = Some(Duration::ZERO), "--duration 0"),
        (|s| s.think = WARMUP, "--think"),
        (|s| s.first_pause = TIMEOUT_OPEN, "--first-pause"),
        (
            |s| s.sources = vec!["::1".parse().expect("an address")],
            "IPv4 and IPv6",
        ),
        (|s| s.connections = Some(2_000_000), "2000000"),
    ];
    for (change, part) in cases {
        let mut settings = open("100:1s");
        change(&mut settings);
        let error = settings.prepare().expect_err(part);
        assert!(error.to_string().contains(part), "{part}: {error}");
        assert!(error.is_use(), "{part}");
    }
}

#[test]
fn servers_are_one_target_each_when_urls_repeat_them() {
    let mut several = settings(Demand::Closed);
    let url = |text: &str| text.parse().expect("an address");
    several.urls.push(url("http://127.0.0.1:8080/b"));
    let plan = several.prepare().expect("a plan").plan;
    assert_eq!((plan.targets.len(), plan.work.documents.len()), (1, 2));
    several.urls.push(url("http://127.0.0.2:8080/a"));
    let error = several.prepare().expect_err("the second has no /b");
    assert!(
        error.is_use() && error.to_string().contains("--paths"),
        "{error}"
    );
}
