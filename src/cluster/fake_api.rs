//! An API server in the test's own process, as far as the driver needs one: objects with UIDs and resourceVersions,
//! compare-and-swap, merge patches, lists. It keeps a record of what was written.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// The server. Clones share its state.
#[derive(Clone, Default)]
pub struct FakeApi(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    version: u64,
    written: Vec<String>,
    /// After so many writes, none succeeds any more.
    breaks_after: Option<usize>,
}

impl FakeApi {
    /// A client of this server.
    pub fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap_or_default();
                let (status, answer) = api.answer(&parts.method, parts.uri.path(), &body);
                let bytes = serde_json::to_vec(&answer).unwrap_or_default();
                let mut response = Response::new(Body::from(bytes));
                *response.status_mut() = status;
                Ok::<_, Infallible>(response)
            }
        });
        Client::new(service, "ns")
    }

    /// Puts an object there, as a user would.
    pub fn put(&self, path: &str, object: Value) {
        let mut state = self.0.lock().unwrap();
        state.store(path, object);
    }

    /// Takes an object away, as a user would.
    pub fn remove(&self, path: &str) {
        self.0.lock().unwrap().objects.remove(path);
    }

    /// An object as it is now.
    pub fn object(&self, path: &str) -> Value {
        self.0.lock().unwrap().objects[path].clone()
    }

    /// The names of the objects below a path.
    pub fn names(&self, below: &str) -> Vec<String> {
        let state = self.0.lock().unwrap();
        state.objects.keys().filter_map(|path| path.strip_prefix(below)?.strip_prefix('/')).map(str::to_owned).collect()
    }

    /// What there is, without what differs between two runs.
    pub fn essence(&self) -> BTreeMap<String, Value> {
        let mut objects = self.0.lock().unwrap().objects.clone();
        for object in objects.values_mut() {
            let metadata = object["metadata"].as_object_mut().unwrap();
            metadata.retain(|key, _| !["uid", "resourceVersion"].contains(&key.as_str()));
            for field in ["spec", "status", "data"] {
                // The UIDs of claims, the times of transitions and random keys are in there.
                if object["kind"] == "Pod" || field != "spec" {
                    object.as_object_mut().unwrap().remove(field);
                }
            }
        }
        objects
    }

    /// What was written, in its order: `PATCH db`.
    pub fn written(&self) -> Vec<String> {
        self.0.lock().unwrap().written.clone()
    }

    /// From now on only so many writes succeed; `None`: all of them.
    pub fn breaks_after(&self, writes: Option<usize>) {
        let mut state = self.0.lock().unwrap();
        state.breaks_after = writes.map(|writes| writes + state.written.len());
    }

    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> (StatusCode, Value) {
        if path.ends_with("/events") {
            return (StatusCode::CREATED, json!({ "metadata": {} }));
        }
        let mut state = self.0.lock().unwrap();
        if *method == Method::GET {
            return state.read(path);
        }
        if state.breaks_after.is_some_and(|most| state.written.len() >= most) {
            return refusal(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable");
        }
        let sent: Value = serde_json::from_slice(body).unwrap_or_default();
        let (status, answer) = state.write(method, path, &sent);
        if status.is_success() {
            let name = answer["metadata"]["name"].as_str().unwrap_or_default();
            let kind = path.split('/').rev().find(|part| !["status", name].contains(part)).unwrap_or_default();
            let status = if path.ends_with("/status") { " status" } else { "" };
            state.written.push(format!("{method} {kind} {name}{status}"));
        }
        (status, answer)
    }
}

impl State {
    fn read(&self, path: &str) -> (StatusCode, Value) {
        if let Some(object) = self.objects.get(path) {
            return (StatusCode::OK, object.clone());
        }
        let names = path.rsplit('/').next().unwrap_or_default();
        if ["pods", "persistentvolumeclaims", "secrets", "etcdclusters", "jobs"].contains(&names) {
            let prefix = format!("{path}/");
            let items: Vec<_> = self.objects.iter().filter(|(p, _)| p.starts_with(&prefix)).map(|(_, o)| o).collect();
            return (StatusCode::OK, json!({ "metadata": {}, "items": items }));
        }
        refusal(StatusCode::NOT_FOUND, "NotFound")
    }

    fn write(&mut self, method: &Method, path: &str, sent: &Value) -> (StatusCode, Value) {
        if *method == Method::POST {
            let path = format!("{path}/{}", sent["metadata"]["name"].as_str().unwrap_or_default());
            if self.objects.contains_key(&path) {
                return refusal(StatusCode::CONFLICT, "AlreadyExists");
            }
            return (StatusCode::CREATED, self.store(&path, sent.clone()));
        }
        // As before Kubernetes 1.33.
        if path.ends_with("/resize") {
            return refusal(StatusCode::NOT_FOUND, "NotFound");
        }
        let of_status = path.ends_with("/status");
        let path = path.trim_end_matches("/status");
        let live = self.objects.get(path).cloned().unwrap_or_else(|| json!({ "metadata": {} }));
        for guard in ["uid", "resourceVersion"] {
            let (expected, found) = (&sent["metadata"][guard], &live["metadata"][guard]);
            if !expected.is_null() && expected != found {
                return refusal(StatusCode::CONFLICT, "Conflict");
            }
        }
        let mut next = live;
        if of_status {
            next["status"] = sent["status"].clone();
        } else {
            merge(&mut next, sent);
        }
        (StatusCode::OK, self.store(path, next))
    }

    fn store(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        let metadata = &mut object["metadata"];
        metadata["namespace"] = json!("ns");
        metadata["resourceVersion"] = json!(self.version.to_string());
        if metadata["uid"].is_null() {
            metadata["uid"] = json!(format!("uid-{}", self.version));
        }
        self.objects.insert(path.to_owned(), object.clone());
        object
    }
}

/// RFC 7396.
fn merge(live: &mut Value, change: &Value) {
    let Value::Object(change) = change else {
        live.clone_from(change);
        return;
    };
    if !live.is_object() {
        *live = json!({});
    }
    let Value::Object(live) = live else { return };
    for (key, change) in change {
        if change.is_null() {
            live.remove(key);
        } else {
            merge(live.entry(key).or_insert(Value::Null), change);
        }
    }
}

fn refusal(code: StatusCode, reason: &str) -> (StatusCode, Value) {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code.as_u16() });
    (code, status)
}
