//! The look of each server's curves: the same in every figure of the page.

use headway_latency::study::StudyResult;

use crate::chart::LineStyle;

/// Servers that are often in one figure come first, so that they differ in colour, not only in dash
/// and shape.
const ORDER: [&str; 13] = [
    "headway",
    "apache",
    "new-flash",
    "flash",
    "nginx",
    "h2o",
    "lighttpd",
    "nginx-threads",
    "fd-pass",
    "no-mmap",
    "apache-event",
    "apache-worker",
    "nginx-cache",
];

/// The names of the servers of all studies, in the order of their looks.
pub(super) struct ServerStyles(Vec<String>);

impl ServerStyles {
    /// ServerStyles for the servers of these studies.
    pub(super) fn of(results: &[StudyResult]) -> ServerStyles {
        let mut names: Vec<String> = ORDER.map(String::from).into();
        let servers = results.iter().flat_map(|result| &result.servers);
        for server in servers {
            if !names.contains(&server.name) {
                names.push(server.name.clone());
            }
        }
        ServerStyles(names)
    }

    /// The look of one server; the last one's successor for a name that no study lists.
    pub(super) fn server(&self, name: &str) -> LineStyle {
        let index = self.0.iter().position(|known| known == name);
        LineStyle::of_run(index.unwrap_or(self.0.len()))
    }
}

/// The label of a server, its name where it has none.
pub(super) fn label<'a>(result: &'a StudyResult, name: &'a str) -> &'a str {
    let server = result.servers.iter().find(|server| server.name == name);
    match server.map(|server| server.label.as_str()) {
        None | Some("") => name,
        Some(label) => label,
    }
}

/// A point as text: `load 0.95`, `infinite demand`, or as the study writes it.
pub(super) fn point(point: &str) -> String {
    let share = point
        .strip_suffix('%')
        .and_then(|number| number.parse::<f64>().ok());
    match (share, point) {
        (Some(percent), _) => format!("load {:.2}", percent / 100.0),
        (None, "capacity") => "infinite demand".into(),
        (None, other) => other
            .replace("% of ", " % of the capacity of ")
            .replace("capacity of slowest", "slowest capacity")
            .replace("capacity of best-peer", "best other server's capacity"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_latency::study::result::ServerResult;

    #[test]
    fn servers_keep_their_style_across_studies() {
        let study = |names: [&str; 2]| StudyResult {
            servers: names
                .map(|name| ServerResult {
                    name: name.into(),
                    ..ServerResult::default()
                })
                .into(),
            ..StudyResult::default()
        };
        let styles = ServerStyles::of(&[
            study(["flash-h1", "headway"]),
            study(["headway", "flash-h5"]),
        ]);
        let own = ["headway", "flash-h1", "flash-h5"].map(|name| styles.server(name));
        assert_eq!(own[0], LineStyle::of_run(0));
        assert!(own[1] != own[2] && own[0] != own[1]);
    }

    #[test]
    fn points_are_text_when_they_are_shares_or_rates() {
        assert_eq!(point("95%"), "load 0.95");
        assert_eq!(point("capacity"), "infinite demand");
        assert_eq!(
            point("80% of best-peer"),
            "80 % of the best other server's capacity"
        );
        assert_eq!(point("90% of slowest"), "90 % of the slowest capacity");
        assert_eq!(point("80% of flash"), "80 % of the capacity of flash");
        assert_eq!(point("2300/s"), "2300/s");
    }
}
