//! Settings for accepting connections and for helpers: the configured values are effective, and the
//! same when they are printed and read back.

use headway_config::research::{Preset, ResearchSettings};
use headway_config::settings::from_command_line;
use headway_config::{AcceptBatch, Config, EarlyReject, HelperBackend, ListenerMode, Settings};
use std::path::Path;

use crate::{HERE, RESEARCH_SERVER};

fn good(text: &str) -> Config {
    let settings =
        Settings::from_toml_with(text, Path::new("/headway.toml"), RESEARCH_SERVER).unwrap();
    let checked = Config::check(&settings, None, &HERE);
    checked
        .unwrap_or_else(|errors| panic!("{text}\n{errors:?}"))
        .config
}

#[test]
fn io_uring_helpers_read_back_as_configured() {
    let config = good("root = '/'\nhelpers = 'io_uring'\nhelpers-max = 4");
    let ring = (HelperBackend::IoUring, 1, 4);
    let of = |config: &Config| {
        (
            config.helper_backend,
            config.helpers_min,
            config.helpers_max,
        )
    };
    assert_eq!(of(&config), ring);
    assert_eq!(good(&config.to_toml()), config);
    assert_eq!(
        of(&good("root = '/'\nhelpers = '2-5'")),
        (HelperBackend::Processes, 2, 5)
    );
}

#[test]
fn accept_settings_read_back_as_configured() {
    let text = "root = '/'\naccept-batch = 'auto'\nearly-reject = 'reset'\nlisteners = 'shared'\nevents = 'epoll-edge'";
    let config = good(text);
    assert_eq!(
        (config.accept_batch, config.early_reject, config.listeners),
        (AcceptBatch::Auto, EarlyReject::Reset, ListenerMode::Shared)
    );
    assert_eq!(config.events, "epoll-edge");
    assert_eq!(good(&config.to_toml()), config);
}

#[test]
fn micro_server_preset_option_replaces_accept_settings_of_the_file() {
    let file = "root = \"/\"\naccept-batch = \"auto\"\nearly-reject = \"503\"";
    let mut settings = Settings::from_toml(file, Path::new("/headway.toml")).unwrap();
    let research = ResearchSettings {
        preset: Some(from_command_line(Preset::Accept25)),
        ..ResearchSettings::default()
    };
    let over = Settings {
        research: Some(from_command_line(research)),
        ..Settings::default()
    };
    settings.overlay(over, RESEARCH_SERVER);
    let config = Config::check(&settings, None, &HERE).unwrap().config;
    assert_eq!(
        (config.accept_batch, config.early_reject),
        (AcceptBatch::Most(25), EarlyReject::Off)
    );
}

#[test]
fn micro_server_preset_has_its_own_defaults_and_reads_back_as_printed() {
    for preset in ["accept1", "cm", "accept25+cache"] {
        let config = good(&format!("root = \"/\"\nresearch.preset = '{preset}'"));
        assert_eq!((config.events.as_str(), config.backlog), ("select", 128));
        assert!(!config.defer_accept && config.max_connections == 15_000);
        assert_eq!(config.research.caching, preset == "accept25+cache");
        assert_eq!(good(&config.to_toml()), config);
    }
}
