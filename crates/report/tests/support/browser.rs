//! A real browser's opinion of a page: it is laid out at several widths, and a script of the test,
//! which the page itself never has, reports what does not fit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Written into the copy of the page that is looked at. It opens every table first, so that those
/// are seen too.
const MEASURE: &str = r#"<script>
addEventListener('load', () => {
  document.querySelectorAll('details').forEach(details => details.open = true);
  const width = document.documentElement.clientWidth, problems = [];
  const say = (what, element) => problems.push(what + ': ' + (element.id || element.textContent || element.tagName).slice(0, 60));
  if (document.documentElement.scrollWidth > width) say('the page scrolls sideways', document.documentElement);
  for (const element of document.querySelectorAll('body *')) {
    const inside = element.parentElement.closest('svg, .scroll');
    const box = element.getBoundingClientRect();
    if (!inside && box.width > 0 && (box.right > width + 1 || box.left < -1)) say('beyond the border', element);
    if (!inside && !element.closest('.scroll') && element.clientWidth > 0 && element.scrollWidth > element.clientWidth + 1)
      say('its content is wider than itself', element);
  }
  let drawings = 0;
  for (const svg of document.querySelectorAll('figure svg[role=img]')) {
    const frame = svg.getBoundingClientRect();
    if (frame.width === 0) continue;
    drawings += 1;
    const scale = frame.width / svg.viewBox.baseVal.width;
    if (scale * 11 < 8.5) say('too small to read', svg);
    const boxes = [...svg.querySelectorAll('text')].map(text => [text, text.getBoundingClientRect()]);
    boxes.forEach(([text, box], index) => {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 2 || box.bottom > frame.bottom + 2)
        say('a label leaves its drawing', text);
      for (const [other, its] of boxes.slice(index + 1)) {
        const across = Math.min(box.right, its.right) - Math.max(box.left, its.left);
        const down = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
        if (across > 1 && down > 4) say('labels overlap: ' + other.textContent, text);
      }
    });
  }
  const figures = [...document.querySelectorAll('figure')].map(figure => figure.id);
  parent.postMessage({ width, drawings, figures, problems }, '*');
});
</script></body>"#;

/// What the browser found at one width.
#[derive(Debug)]
pub struct Found {
    pub width: u64,
    pub drawings: u64,
    pub figures: Vec<String>,
    pub problems: Vec<String>,
}

/// The browser's program, if the machine has one.
pub fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&path)
        .flat_map(|directory| names.map(|name| directory.join(name)))
        .find(|program| program.is_file())
}

/// Lays a page out at each width. A headless window is never narrower than 500 pixels, so each
/// width is a frame in it.
pub fn measure(program: &Path, page: &str, widths: &[u32], dark: bool) -> Vec<Found> {
    let scratch = tempfile::tempdir().expect("a directory for the browser");
    let policy_begin = page
        .find("<meta http-equiv=\"Content-Security-Policy\"")
        .expect("the page forbids scripts");
    let policy_end = policy_begin
        + page[policy_begin..]
            .find('>')
            .expect("the end of an element")
        + 1;
    let copy = [&page[..policy_begin], &page[policy_end..]].concat();
    assert_eq!(copy.matches("</body>").count(), 1, "a page has one body");
    let copy = copy.replace("</body>", MEASURE);
    fs::write(scratch.path().join("page.html"), copy).expect("a copy of the page");
    let frames: String = widths
        .iter()
        .map(|width| format!("<iframe src=\"page.html\" style=\"width:{width}px;height:900px;border:0\"></iframe>"))
        .collect();
    let outer = format!(
        "<!doctype html><meta charset=\"utf-8\"><pre id=\"found\"></pre><script>addEventListener('message', event => \
         found.textContent += JSON.stringify(event.data).replaceAll('<', ' ').replaceAll('&', ' ') + '\\n')</script>{frames}"
    );
    fs::write(scratch.path().join("outer.html"), outer).expect("a page of frames");
    let dom = dump(program, scratch.path(), dark);
    let found = dom
        .split("<pre id=\"found\">")
        .nth(1)
        .and_then(|rest| rest.split("</pre>").next());
    let lines = found
        .unwrap_or_else(|| panic!("the browser gave no result:\n{dom}"))
        .lines();
    lines.map(read).collect()
}

fn read(line: &str) -> Found {
    let value: Value = serde_json::from_str(line).expect("the script writes JSON");
    let strings = |name: &str| -> Vec<String> {
        let list = value[name].as_array().expect("a list").iter();
        list.filter_map(|text| text.as_str().map(String::from))
            .collect()
    };
    Found {
        width: value["width"].as_u64().expect("a width"),
        drawings: value["drawings"].as_u64().expect("a number of drawings"),
        figures: strings("figures"),
        problems: strings("problems"),
    }
}

/// The document after its scripts have run. A browser that hangs is ended, so that the tests end
/// too.
fn dump(program: &Path, directory: &Path, dark: bool) -> String {
    let output = directory.join("dom");
    let file = fs::File::create(&output).expect("a file for the browser's output");
    let mut command = Command::new(program);
    command
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--allow-file-access-from-files",
        ])
        .args([
            "--no-first-run",
            "--hide-scrollbars",
            "--disable-dev-shm-usage",
            "--virtual-time-budget=20000",
            "--dump-dom",
        ])
        .arg("--window-size=1700,1000")
        .arg(format!(
            "--user-data-dir={}",
            directory.join("profile").display()
        ))
        .arg(format!(
            "--blink-settings=preferredColorScheme={}",
            u8::from(!dark)
        ))
        .arg(format!("file://{}", directory.join("outer.html").display()))
        .stdout(file)
        .stderr(Stdio::null());
    let mut child = command.spawn().expect("the browser that was found starts");
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        match child.try_wait().expect("the browser is our child") {
            Some(status) => {
                assert!(status.success(), "the browser ended with {status}");
                break;
            }
            None if Instant::now() > deadline => {
                child.kill().expect("the browser is our child");
                child.wait().expect("the browser is our child");
                panic!("the browser did not end");
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    String::from_utf8_lossy(&fs::read(&output).expect("the browser's output")).into_owned()
}
