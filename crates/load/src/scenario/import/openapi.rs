//! OpenAPI 3 descriptions, in JSON.
//!
//! Each operation becomes a step of its own. Values of parameters and bodies are the examples of the
//! description, or made up from their schemas.

use serde_json::{Map, Value};

use super::{FileOut, ImportError, Imported, StepOut, literal, sendable};

/// How deep schemas are followed; they may refer to themselves.
const DEPTH_MAX: u32 = 8;

/// Methods that only read.
const READS: [&str; 2] = ["get", "head"];
/// Methods that change something.
const WRITES: [&str; 4] = ["post", "put", "patch", "delete"];

/// Makes a scenario from a description; only with `writes` from operations that change something.
///
/// ```
/// let api = r#"{"openapi": "3.1.0", "paths": {"/items/{id}": {"get": {
///     "operationId": "item",
///     "parameters": [{"name": "id", "in": "path", "schema": {"type": "integer"}}]
/// }}}}"#;
/// let imported = headway_load::scenario::from_openapi(api, false)?;
/// assert!(imported.text.contains("name = \"item\"\n"));
/// assert!(imported.text.contains("path = \"/items/1\"\n"));
/// # Ok::<(), headway_load::scenario::ImportError>(())
/// ```
///
/// # Errors
/// The text is not a description, or has no operation.
pub fn from_openapi(text: &str, writes: bool) -> Result<Imported, ImportError> {
    let root: Value = serde_json::from_str(text).map_err(|error| {
        ImportError(format!(
            "it is not JSON: {error}; convert YAML first: yq -o json api.yaml"
        ))
    })?;
    let version = root["openapi"].as_str().unwrap_or_default();
    let Some(paths) = root["paths"]
        .as_object()
        .filter(|_| version.starts_with('3'))
    else {
        let text = "it is not a description of OpenAPI 3: it needs `openapi` and `paths`";
        return Err(ImportError(text.to_owned()));
    };
    let api = Api { root: &root };
    let base = api.base();
    let (mut file, mut notes, mut left_out) = (FileOut::default(), Vec::new(), 0_u64);
    for (path, item) in paths {
        let item = api.resolved(item);
        for method in READS.iter().chain(&WRITES) {
            let Some(operation) = item.get(*method) else {
                continue;
            };
            match writes || READS.contains(method) {
                true => file
                    .step
                    .push(api.step(&base, path, method, item, operation)),
                false => left_out += 1,
            }
        }
    }
    if left_out > 0 {
        notes.push(format!(
            "{left_out} operations that change something are left out; add --writes"
        ));
    }
    if file.step.is_empty() {
        return Err(ImportError(format!(
            "it has no operation to ask for; {}",
            notes.join("; ")
        )));
    }
    if file
        .step
        .iter()
        .any(|step| step.headers.contains_key("Authorization"))
    {
        notes.push("set TOKEN in the environment to the bearer token".to_owned());
    }
    let title = root["info"]["title"].as_str().unwrap_or("an API");
    let title: String = title.chars().filter(|c| !c.is_control()).collect();
    let head = format!("# From the OpenAPI description of {title}. Set weights and values.\n");
    let text = file.text(&head)?;
    Ok(Imported { text, notes })
}

struct Api<'a> {
    root: &'a Value,
}

impl<'a> Api<'a> {
    /// What a `$ref` refers to, if there is one.
    fn resolved(&self, value: &'a Value) -> &'a Value {
        let pointer = value["$ref"].as_str().and_then(|to| to.strip_prefix('#'));
        pointer
            .and_then(|pointer| self.root.pointer(pointer))
            .unwrap_or(value)
    }

    /// The path of the first server.
    fn base(&self) -> String {
        let url = self.root["servers"][0]["url"].as_str().unwrap_or_default();
        let path = match url.split_once("://") {
            None => url,
            Some((_, rest)) => rest.find('/').map_or("", |at| &rest[at..]),
        };
        match path.starts_with('/') && !path.contains('{') {
            true => path.trim_end_matches('/').to_owned(),
            false => String::new(),
        }
    }

    fn step(
        &self,
        base: &str,
        path: &str,
        method: &str,
        item: &'a Value,
        operation: &'a Value,
    ) -> StepOut {
        let mut filled = literal(path);
        let mut query = Vec::new();
        let mut step = StepOut::default();
        let parameters = [&item["parameters"], &operation["parameters"]];
        for parameter in parameters.into_iter().filter_map(Value::as_array).flatten() {
            let parameter = self.resolved(parameter);
            let Some(name) = parameter["name"].as_str() else {
                continue;
            };
            let is_required = parameter["required"].as_bool().unwrap_or(false);
            let value = || self.parameter(name, parameter);
            match parameter["in"].as_str() {
                Some("path") => filled = filled.replace(&format!("{{{name}}}"), &value()),
                Some("query") if is_required => query.push(format!("{name}={}", value())),
                Some("header") if is_required => {
                    step.headers.insert(name.to_owned(), value());
                }
                _ => {}
            }
        }
        if self.has_bearer(operation) {
            step.headers.insert(
                "Authorization".to_owned(),
                "Bearer {{env.TOKEN}}".to_owned(),
            );
        }
        if let Some((kind, body)) = self.body(operation) {
            step.headers.insert("Content-Type".to_owned(), kind);
            step.body = Some(body);
        }
        let question = if query.is_empty() { "" } else { "?" };
        let id = operation["operationId"].as_str().map(str::to_owned);
        let method = method.to_ascii_uppercase();
        step.name = id.unwrap_or_else(|| format!("{method} {path}"));
        step.method = Some(method);
        step.path = sendable(&format!("{base}{filled}{question}{}", query.join("&")));
        step.status = status(operation);
        step
    }

    /// The value of a parameter as it stands in a URL.
    fn parameter(&self, name: &str, parameter: &'a Value) -> String {
        let examples = parameter["examples"].as_object();
        let example = examples.and_then(|all| Some(&self.resolved(all.values().next()?)["value"]));
        let given = [Some(&parameter["example"]), example];
        let given = given.into_iter().flatten().find(|value| !value.is_null());
        let schema = self.resolved(&parameter["schema"]);
        let is_uuid = schema["format"].as_str() == Some("uuid");
        match given {
            None if is_uuid => "{{uuid}}".to_owned(),
            None => text(&self.made(schema, name, DEPTH_MAX)),
            Some(value) => text(value),
        }
    }

    /// The media type and the text of the body.
    fn body(&self, operation: &'a Value) -> Option<(String, String)> {
        let content = self.resolved(&operation["requestBody"])["content"].as_object()?;
        let is_json = |kind: &&String| kind.contains("json");
        let kind = content.keys().find(is_json).or(content.keys().next())?;
        let media = &content[kind];
        let examples = media["examples"].as_object();
        let example = examples.and_then(|all| Some(&self.resolved(all.values().next()?)["value"]));
        let given = [Some(&media["example"]), example];
        let given = given.into_iter().flatten().find(|value| !value.is_null());
        let value = match given {
            Some(value) => value.clone(),
            None => self.made(&media["schema"], "", DEPTH_MAX),
        };
        let body = match &value {
            Value::String(text) if !kind.contains("json") => text.clone(),
            other => other.to_string(),
        };
        Some((kind.clone(), literal(&body)))
    }

    /// A value for a schema.
    fn made(&self, schema: &'a Value, name: &str, depth: u32) -> Value {
        let schema = self.resolved(schema);
        let constant = ["example", "default", "const"];
        let constants = constant.iter().map(|key| &schema[*key]);
        let mut constants = constants.chain([&schema["enum"][0], &schema["examples"][0]]);
        if let Some(found) = constants.find(|value| !value.is_null()) {
            return found.clone();
        }
        if depth == 0 {
            return Value::Null;
        }
        for key in ["allOf", "oneOf", "anyOf"] {
            let Some(parts) = schema[key].as_array() else {
                continue;
            };
            let made = parts.iter().map(|part| self.made(part, name, depth - 1));
            let parts = if key == "allOf" { usize::MAX } else { 1 };
            return made.take(parts).reduce(joined).unwrap_or(Value::Null);
        }
        let kind = schema["type"].as_str().or(schema["type"][0].as_str());
        match kind {
            Some("integer" | "number") => schema["minimum"]
                .as_number()
                .map_or(1.into(), |least| Value::Number(least.clone())),
            Some("boolean") => true.into(),
            Some("array") => vec![self.made(&schema["items"], name, depth - 1)].into(),
            Some("string") => string(schema, name).into(),
            _ => match schema["properties"].as_object() {
                Some(properties) => self.object(properties, depth),
                None if kind == Some("object") => Value::Object(Map::new()),
                None => string(schema, name).into(),
            },
        }
    }

    fn object(&self, properties: &'a Map<String, Value>, depth: u32) -> Value {
        let writable = properties
            .iter()
            .filter(|(_, schema)| schema["readOnly"].as_bool() != Some(true));
        let made =
            writable.map(|(name, schema)| (name.clone(), self.made(schema, name, depth - 1)));
        Value::Object(made.collect())
    }

    /// Whether the operation needs a bearer token.
    fn has_bearer(&self, operation: &Value) -> bool {
        let own = operation.get("security").unwrap_or(&self.root["security"]);
        let names = own
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_object);
        let mut names = names.flat_map(|one| one.keys());
        names.any(|name| {
            let scheme = self.resolved(&self.root["components"]["securitySchemes"][name]);
            let is_bearer = |one: &str| one.eq_ignore_ascii_case("bearer");
            scheme["type"].as_str() == Some("oauth2")
                || scheme["scheme"].as_str().is_some_and(is_bearer)
        })
    }
}

/// Parts of an `allOf`.
fn joined(one: Value, other: Value) -> Value {
    match (one, other) {
        (Value::Object(mut one), Value::Object(other)) => {
            one.extend(other);
            Value::Object(one)
        }
        (Value::Null, other) => other,
        (one, _) => one,
    }
}

fn string(schema: &Value, name: &str) -> String {
    let value = match schema["format"].as_str() {
        Some("date") => "2026-01-01",
        Some("date-time") => "2026-01-01T00:00:00Z",
        Some("uuid") => "00000000-0000-4000-8000-000000000000",
        Some("email") => "user@example.com",
        Some("uri") => "https://example.com/",
        _ if name.is_empty() => "text",
        _ => name,
    };
    value.to_owned()
}

/// A value in a URL, as far as it is not percent-encoded by [`sendable`].
fn text(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let encoded = text.chars().map(|c| match c {
        '/' | '?' | '#' | '&' | '%' | '+' | '=' => format!("%{:02X}", u32::from(c)),
        c => c.to_string(),
    });
    literal(&encoded.collect::<String>())
}

/// The status of a good response, if there is one that is said to be.
fn status(operation: &Value) -> Option<u16> {
    let responses = operation["responses"].as_object()?;
    let mut codes = responses.keys().filter_map(|code| code.parse::<u16>().ok());
    codes.find(|code| (200..400).contains(code))
}
