//! An API server in the test's own process, as far as the operator needs one: objects with UIDs and resourceVersions,
//! compare-and-swap, merge patches, lists by our label, watches. It keeps a record of what was written, and the line to it
//! can be bad.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, Uri};
use kube::Client;
use kube::client::Body;
use quorate_crds::names::LABEL_CLUSTER;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

/// The server, as reached over one line. Clones share both.
#[derive(Clone, Default)]
pub struct FakeApi {
    state: Arc<Mutex<State>>,
    /// What is wrong with the line, and for which calls.
    faults: Arc<Mutex<Vec<(String, Fault)>>>,
}

/// What becomes of a call over a bad line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is answered with this, and nothing is done.
    Refuse(StatusCode),
    /// It never arrives.
    Lose,
    /// Whoever calls panics: for tests of what such a mistake may end.
    Panic,
    /// It arrives after so long, and its answer after so long again. It is done though the client has given up.
    Lag {
        /// The way there.
        there: Duration,
        /// The way back.
        back: Duration,
    },
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    version: watch::Sender<u64>,
    /// What watches tell: the version and the path of each change, and its event.
    changes: Vec<(u64, String, Value)>,
    written: Vec<String>,
    /// The reasons of the events that were told.
    events: Vec<String>,
    /// Who wrote, by the name under which Kubernetes notes whose a field is.
    managers: BTreeSet<String>,
    /// After so many writes, none succeeds any more.
    breaks_after: Option<usize>,
    forgets_versions: bool,
}

/// A call as it arrives.
struct Call {
    method: Method,
    uri: Uri,
    body: Value,
}

impl Call {
    fn parameter(&self, name: &str) -> Option<&str> {
        let parameters = self.uri.query().unwrap_or_default().split('&');
        parameters.filter_map(|one| one.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// The one object that is asked for, of those below a path.
    fn only(&self) -> Option<&str> {
        self.parameter("fieldSelector")?.strip_prefix("metadata.name%3D")
    }

    /// The cluster whose children are asked for, by our own label. Other selectors of labels select all.
    fn cluster(&self) -> Option<&str> {
        let label = LABEL_CLUSTER.replace('/', "%2F");
        self.parameter("labelSelector")?.strip_prefix(&label)?.strip_prefix("%3D")
    }
}

type Answer = (StatusCode, Value);

impl FakeApi {
    /// The same server over another line: what is wrong with one, the other does not notice.
    pub fn another_line(&self) -> Self {
        Self { state: self.state.clone(), faults: Arc::default() }
    }

    /// From now on this becomes of the calls over this line that have these words in them, written as
    /// `GET /api/v1/nodes?watch=true`. What was said first counts.
    pub fn disturb(&self, calls: &str, fault: Fault) {
        self.faults.lock().unwrap().push((calls.to_owned(), fault));
    }

    /// Nothing is wrong with this line any more.
    pub fn mend(&self) {
        self.faults.lock().unwrap().clear();
    }

    /// From now on writes succeed whatever version they name, as no API server may let them: for tests of tests.
    pub fn forget_versions(&self) {
        self.state.lock().unwrap().forgets_versions = true;
    }

    /// A client of this server.
    pub fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap_or_default();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let (status, answer) = api.reach(Call { method: parts.method, uri: parts.uri, body }).await;
                let mut response = Response::new(Body::from(answer.into_bytes()));
                *response.status_mut() = status;
                Ok::<_, Infallible>(response)
            }
        });
        Client::new(service, "ns")
    }

    /// A call over this line, and the text that comes back.
    async fn reach(&self, call: Call) -> (StatusCode, String) {
        let line = format!("{} {}", call.method, call.uri);
        let fault = self.faults.lock().unwrap().iter().find(|(calls, _)| line.contains(calls)).map(|(_, fault)| *fault);
        match fault {
            None => self.answer(call).await,
            Some(Fault::Refuse(code)) => {
                let (code, answer) = refusal(code, &code.canonical_reason().unwrap_or_default().replace(' ', ""));
                (code, answer.to_string())
            }
            Some(Fault::Lose) => std::future::pending().await,
            Some(Fault::Panic) => panic!("{line}"),
            Some(Fault::Lag { there, back }) => {
                let api = self.clone();
                let on_its_way = tokio::spawn(async move {
                    sleep(there).await;
                    let answer = api.answer(call).await;
                    sleep(back).await;
                    answer
                });
                on_its_way.await.unwrap()
            }
        }
    }

    async fn answer(&self, call: Call) -> (StatusCode, String) {
        if call.method == Method::GET && call.parameter("watch") == Some("true") {
            return (StatusCode::OK, self.watch(&call).await);
        }
        let (status, answer) = self.answer_at_once(&call);
        (status, answer.to_string())
    }

    /// A watch that tells the next changes and ends: whoever watches asks again from there.
    async fn watch(&self, call: &Call) -> String {
        let since = call.parameter("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0);
        let mut version = self.state.lock().unwrap().version.subscribe();
        loop {
            let told = self.state.lock().unwrap().told(call.uri.path(), call.only(), since);
            if !told.is_empty() {
                return told;
            }
            version.changed().await.unwrap();
        }
    }

    /// Puts an object there, as a user would.
    pub fn put(&self, path: &str, object: Value) {
        let mut state = self.state.lock().unwrap();
        state.store(path, object);
    }

    /// Takes an object away, as a user would.
    pub fn remove(&self, path: &str) {
        self.state.lock().unwrap().take_away(path);
    }

    /// An object as it is now.
    pub fn object(&self, path: &str) -> Value {
        self.state.lock().unwrap().objects[path].clone()
    }

    /// The names of the objects below a path.
    pub fn names(&self, below: &str) -> Vec<String> {
        let state = self.state.lock().unwrap();
        state.objects.keys().filter_map(|path| path.strip_prefix(below)?.strip_prefix('/')).map(str::to_owned).collect()
    }

    /// What there is, without what differs between two runs.
    pub fn essence(&self) -> BTreeMap<String, Value> {
        let mut objects = self.state.lock().unwrap().objects.clone();
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
        self.state.lock().unwrap().written.clone()
    }

    /// The reasons of the events that were told, in their order. One that is told again in the same words is none of them.
    pub fn events(&self) -> Vec<String> {
        self.state.lock().unwrap().events.clone()
    }

    /// Under which names fields were written. A deletion writes none.
    pub fn managers(&self) -> BTreeSet<String> {
        self.state.lock().unwrap().managers.clone()
    }

    /// From now on only so many writes succeed; `None`: all of them.
    pub fn breaks_after(&self, writes: Option<usize>) {
        let mut state = self.state.lock().unwrap();
        state.breaks_after = writes.map(|writes| writes + state.written.len());
    }

    fn answer_at_once(&self, call: &Call) -> Answer {
        let (method, path) = (&call.method, call.uri.path());
        let mut state = self.state.lock().unwrap();
        if path.ends_with("/events") {
            state.events.push(call.body["reason"].as_str().unwrap_or_default().to_owned());
            return (StatusCode::CREATED, json!({ "metadata": {} }));
        }
        if *method == Method::GET {
            return state.read(call);
        }
        if state.breaks_after.is_some_and(|most| state.written.len() >= most) {
            return refusal(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable");
        }
        let (status, answer) = state.write(method, path, &call.body);
        if status.is_success() {
            let name = answer["metadata"]["name"].as_str().unwrap_or_default();
            let kind = path.split('/').rev().find(|part| !["status", name].contains(part)).unwrap_or_default();
            let status = if path.ends_with("/status") { " status" } else { "" };
            state.written.push(format!("{method} {kind} {name}{status}"));
            if *method != Method::DELETE {
                state.managers.insert(call.parameter("fieldManager").unwrap_or("nobody").to_owned());
            }
        }
        (status, answer)
    }
}

impl State {
    fn read(&self, call: &Call) -> Answer {
        let path = call.uri.path();
        if let Some(object) = self.objects.get(path) {
            return (StatusCode::OK, object.clone());
        }
        if !is_collection(path) {
            return refusal(StatusCode::NOT_FOUND, "NotFound");
        }
        let is_asked_for = |at: &str, object: &Value| {
            let labelled = |cluster: &str| object["metadata"]["labels"][LABEL_CLUSTER] == cluster;
            is_in(path, call.only(), at) && call.cluster().is_none_or(labelled)
        };
        let items: Vec<_> =
            self.objects.iter().filter(|(at, object)| is_asked_for(at, object)).map(|(_, object)| object).collect();
        let version = self.version.borrow().to_string();
        (StatusCode::OK, json!({ "metadata": { "resourceVersion": version }, "items": items }))
    }

    /// The events of a watch, one on each line.
    fn told(&self, path: &str, only: Option<&str>, since: u64) -> String {
        let news = self.changes.iter().filter(|(version, changed, _)| *version > since && is_in(path, only, changed));
        let lines: Vec<_> = news.map(|(_, _, event)| event.to_string() + "\n").collect();
        lines.concat()
    }

    fn write(&mut self, method: &Method, path: &str, sent: &Value) -> Answer {
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
        let live = match self.objects.get(path) {
            Some(live) => live.clone(),
            // Only what is applied comes into being.
            None if *method != Method::PATCH => return refusal(StatusCode::NOT_FOUND, "NotFound"),
            None => json!({ "metadata": {} }),
        };
        let guards = if *method == Method::DELETE { &sent["preconditions"] } else { &sent["metadata"] };
        if !self.forgets_versions && !fits(&live, guards) {
            return if *method == Method::PATCH { not_this_one(&live, guards) } else { conflict() };
        }
        if *method == Method::DELETE {
            self.take_away(path);
            return (StatusCode::OK, live);
        }
        let mut next = live;
        if of_status {
            next["status"] = sent["status"].clone();
        } else if *method == Method::PUT {
            let uid = next["metadata"]["uid"].take();
            next.clone_from(sent);
            next["metadata"]["uid"] = uid;
        } else {
            merge(&mut next, sent);
        }
        (StatusCode::OK, self.store(path, next))
    }

    fn store(&mut self, path: &str, mut object: Value) -> Value {
        let version = *self.version.borrow() + 1;
        let metadata = &mut object["metadata"];
        metadata["namespace"] = json!("ns");
        metadata["resourceVersion"] = json!(version.to_string());
        if metadata["uid"].is_null() {
            metadata["uid"] = json!(format!("uid-{version}"));
        }
        let kind = if self.objects.contains_key(path) { "MODIFIED" } else { "ADDED" };
        self.objects.insert(path.to_owned(), object.clone());
        self.tell(version, path, kind, &object);
        object
    }

    fn take_away(&mut self, path: &str) {
        let Some(mut object) = self.objects.remove(path) else { return };
        let version = *self.version.borrow() + 1;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        self.tell(version, path, "DELETED", &object);
    }

    fn tell(&mut self, version: u64, path: &str, kind: &str, object: &Value) {
        self.changes.push((version, path.to_owned(), json!({ "type": kind, "object": object })));
        self.version.send_replace(version);
    }
}

/// Whether a path is that of a kind, in one namespace or in all, and not that of an object.
fn is_collection(path: &str) -> bool {
    let parts: Vec<_> = path.trim_start_matches('/').split('/').collect();
    match parts.as_slice() {
        ["api", _, below @ ..] | ["apis", _, _, below @ ..] => matches!(below, [_] | ["namespaces", _, _]),
        _ => false,
    }
}

/// Whether an object is of this collection, and the one that is asked for.
fn is_in(collection: &str, only: Option<&str>, object: &str) -> bool {
    let (above, name) = object.rsplit_once('/').unwrap_or_default();
    only.is_none_or(|only| only == name)
        && (above == collection || above.replacen("/namespaces/ns", "", 1) == collection)
}

/// Whether an object is the one that a write is meant for.
fn fits(live: &Value, guards: &Value) -> bool {
    ["uid", "resourceVersion"].iter().all(|guard| guards[guard].is_null() || guards[guard] == live["metadata"][guard])
}

/// To a patch of an object as it was not: if its version is right, or not named, only the UID is at fault.
fn not_this_one(live: &Value, guards: &Value) -> Answer {
    let version = &guards["resourceVersion"];
    let is_another = !live["metadata"]["uid"].is_null();
    let at_fault = is_another && (version.is_null() || *version == live["metadata"]["resourceVersion"]);
    if !at_fault {
        return conflict();
    }
    let (code, mut status) = refusal(StatusCode::UNPROCESSABLE_ENTITY, "Invalid");
    let cause = json!({ "reason": "FieldValueInvalid", "message": "field is immutable", "field": "metadata.uid" });
    status["details"] = json!({ "causes": [cause] });
    (code, status)
}

fn conflict() -> Answer {
    refusal(StatusCode::CONFLICT, "Conflict")
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

fn refusal(code: StatusCode, reason: &str) -> Answer {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code.as_u16() });
    (code, status)
}
