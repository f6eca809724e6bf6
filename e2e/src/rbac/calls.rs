//! What the operator called, by the API server's audit log: which rights it took, and which it was denied. Must not
//! know what is granted.

use std::collections::BTreeMap;
use std::io;

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

use super::{ACCOUNT, Call, Right};

/// The words of the API server for a right that is lacking, where it is asked for in the course of an allowed call.
const CANNOT_CREATE: &str = "cannot create resource";

/// The calls of a log.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Those that were allowed, and how often.
    pub allowed: BTreeMap<Call, u64>,
    /// Those that were denied.
    pub denied: BTreeMap<Call, Denial>,
    /// Lines that can't be read. The last one doesn't count: it may be half written.
    pub unreadable: u64,
}

/// How a call was denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// How often.
    pub times: u64,
    /// When last.
    pub last: Timestamp,
    /// What the API server said then.
    pub message: String,
}

impl Calls {
    /// The operator's calls in these lines. Some rights are used once in the life of a cluster (the Lease is created),
    /// so all that were allowed count; of those that were denied, only what this operator called: since then.
    pub fn read(lines: impl IntoIterator<Item = io::Result<Vec<u8>>>, denied_since: Timestamp) -> io::Result<Self> {
        let mut calls = Self::default();
        let mut cut = false;
        for line in lines {
            // One that can't be read is half written if it is the last, and only then.
            calls.unreadable += u64::from(cut);
            let event = serde_json::from_slice::<Event>(&line?);
            cut = event.is_err();
            let Ok(event) = event else { continue };
            if event.user.username == ACCOUNT && event.is_whole() {
                calls.count(event, denied_since);
            }
        }
        Ok(calls)
    }

    fn count(&mut self, event: Event, denied_since: Timestamp) {
        let call = event.call();
        let made = Call { right: Right { verb: "create".into(), ..call.right.clone() }, ..call.clone() };
        match event.answer() {
            // A right to a path is everybody's: see system:discovery and system:public-info-viewer.
            Answer::Allowed if event.object_ref.is_none() => (),
            Answer::Allowed => self.allow(call),
            Answer::Created => {
                self.allow(call);
                self.allow(made);
            }
            Answer::MayNotCreate => {
                self.allow(call);
                self.deny(made, event, denied_since);
            }
            Answer::Denied => self.deny(call, event, denied_since),
            Answer::Undecided => (),
        }
    }

    fn allow(&mut self, call: Call) {
        *self.allowed.entry(call).or_default() += 1;
    }

    fn deny(&mut self, call: Call, event: Event, since: Timestamp) {
        let last = event.request_received_timestamp;
        if last < since {
            return;
        }
        let times = self.denied.get(&call).map_or(0, |denial| denial.times) + 1;
        let message = event.response_status.and_then(|status| status.message).unwrap_or_default();
        self.denied.insert(call, Denial { times, last, message });
    }
}

/// What became of a call.
enum Answer {
    Allowed,
    /// The object was not there: who patches or updates it then needs the right to create it too.
    Created,
    /// And lacked it.
    MayNotCreate,
    Denied,
    /// It was turned away before RBAC was asked.
    Undecided,
}

/// A line of the audit log (`audit.k8s.io/v1`), as far as it matters here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    stage: Stage,
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    user: User,
    object_ref: Option<ObjectRef>,
    response_status: Option<Status>,
    request_received_timestamp: Timestamp,
    #[serde(default)]
    annotations: Annotations,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Deserialize)]
enum Stage {
    RequestReceived,
    ResponseStarted,
    ResponseComplete,
    Panic,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ObjectRef {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct Status {
    code: Option<u16>,
    message: Option<String>,
}

#[derive(Default, Deserialize)]
struct Annotations {
    #[serde(rename = "authorization.k8s.io/decision")]
    decision: Option<String>,
}

impl Event {
    /// Whether this line is the one to count of those about the same call: a watch has one when it begins, since nobody
    /// knows when it ends.
    fn is_whole(&self) -> bool {
        match self.stage {
            Stage::RequestReceived => false,
            Stage::ResponseStarted => true,
            Stage::ResponseComplete | Stage::Panic => self.verb != "watch",
        }
    }

    fn call(&self) -> Call {
        let Some(ObjectRef { api_group, resource, subresource, namespace, name }) = &self.object_ref else {
            let path = self.request_uri.split('?').next().unwrap_or_default().to_owned();
            let right = Right { group: String::new(), resource: path, verb: self.verb.clone() };
            return Call { right, namespace: String::new(), name: String::new() };
        };
        let resource = if subresource.is_empty() { resource.clone() } else { format!("{resource}/{subresource}") };
        let right = Right { group: api_group.clone(), resource, verb: self.verb.clone() };
        Call { right, namespace: namespace.clone(), name: name.clone() }
    }

    /// A 403 alone doesn't say that a right is lacking: a quota and a namespace that is being deleted answer so too,
    /// after RBAC has allowed the call.
    fn answer(&self) -> Answer {
        let (code, message) = match &self.response_status {
            Some(Status { code, message }) => (code.unwrap_or_default(), message.as_deref().unwrap_or_default()),
            None => (0, ""),
        };
        let changes = matches!(self.verb.as_str(), "patch" | "update");
        match (self.annotations.decision.as_deref(), code) {
            (Some("allow"), 201) if changes => Answer::Created,
            (Some("allow"), 403) if changes && message.contains(CANNOT_CREATE) => Answer::MayNotCreate,
            (Some("allow"), _) => Answer::Allowed,
            (Some(_), _) | (None, 403) => Answer::Denied,
            (None, _) => Answer::Undecided,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// A line as the API server writes it, with `change` merged into it.
    pub fn line(verb: &str, resource: &str, code: u16, change: &Value) -> Value {
        let decision = if code == 403 { "forbid" } else { "allow" };
        let mut line = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "auditID": "1",
            "stage": "ResponseComplete", "requestURI": "/api/v1/a?b=c", "verb": verb,
            "user": { "username": ACCOUNT, "groups": ["system:serviceaccounts", "system:authenticated"] },
            "objectRef": { "resource": resource, "namespace": "ns", "name": "db", "apiVersion": "v1" },
            "responseStatus": { "metadata": {}, "code": code },
            "requestReceivedTimestamp": "2026-05-01T10:00:00.000001Z",
            "stageTimestamp": "2026-05-01T10:00:00.000002Z",
            "annotations": { "authorization.k8s.io/decision": decision, "authorization.k8s.io/reason": "" },
        });
        merge(&mut line, change);
        line
    }

    fn merge(to: &mut Value, change: &Value) {
        match change {
            Value::Object(fields) => fields.iter().for_each(|(name, change)| merge(&mut to[name.as_str()], change)),
            change => *to = change.clone(),
        }
    }

    pub fn read(lines: &[Value]) -> Calls {
        let lines = lines.iter().map(|line| Ok(line.to_string().into_bytes()));
        Calls::read(lines, Timestamp::UNIX_EPOCH).unwrap()
    }

    fn allowed(lines: &[Value]) -> Vec<(String, u64)> {
        read(lines).allowed.into_iter().map(|(call, times)| (call.right.to_string(), times)).collect()
    }

    #[test]
    fn calls_are_counted_by_group_resource_and_verb() {
        let status = json!({ "objectRef": { "apiGroup": "quorate.dev", "subresource": "status" } });
        let lines = [
            line("get", "pods", 200, &json!({})),
            line("get", "pods", 404, &json!({})),
            line("update", "etcdclusters", 200, &status),
            line("get", "pods", 200, &json!({ "user": { "username": "system:serviceaccount:other:quorate" } })),
        ];
        let expected = [("get pods".into(), 2), ("update etcdclusters.quorate.dev/status".into(), 1)];
        assert_eq!(allowed(&lines), expected);
        assert_eq!(read(&lines).denied, BTreeMap::new());
    }

    #[test]
    fn a_watch_counts_once_when_it_begins() {
        let lines = [
            line("watch", "pods", 200, &json!({ "stage": "RequestReceived" })),
            line("watch", "pods", 200, &json!({ "stage": "ResponseStarted" })),
            line("watch", "pods", 200, &json!({})),
        ];
        assert_eq!(allowed(&lines), [("watch pods".into(), 1)]);
    }

    #[test]
    fn who_applies_what_is_not_there_creates_it() {
        let lines = [line("patch", "services", 201, &json!({})), line("patch", "services", 200, &json!({}))];
        assert_eq!(allowed(&lines), [("create services".into(), 1), ("patch services".into(), 2)]);
        let message = format!(r#"services "db" is forbidden: User "{ACCOUNT}" cannot create resource "services""#);
        let refused = json!({ "annotations": { "authorization.k8s.io/decision": "allow" },
                              "responseStatus": { "message": message } });
        let calls = read(&[line("patch", "services", 403, &refused)]);
        let denied: Vec<_> = calls.denied.keys().map(|call| call.right.to_string()).collect();
        assert_eq!((calls.allowed.len(), denied), (1, vec!["create services".to_owned()]));
    }

    #[test]
    fn a_denied_call_is_found_and_a_refused_object_is_none() {
        let message = json!({ "responseStatus": { "message": "no" } });
        let calls = read(&[line("get", "secrets", 403, &message), line("get", "secrets", 403, &message)]);
        let denials: Vec<_> = calls.denied.values().map(|denial| (denial.times, denial.message.as_str())).collect();
        assert_eq!((denials, calls.allowed.len()), (vec![(2, "no")], 0));
        // An admission plugin says 403 too.
        let going = json!({ "annotations": { "authorization.k8s.io/decision": "allow" },
                            "responseStatus": { "message": "the namespace is being terminated" } });
        let calls = read(&[line("create", "pods", 403, &going)]);
        assert_eq!((calls.denied.len(), calls.allowed.len()), (0, 1));
        // Turned away before it was decided, as when too many calls are under way.
        let undecided = json!({ "annotations": { "authorization.k8s.io/decision": null } });
        let calls = read(&[line("get", "pods", 429, &undecided)]);
        assert_eq!((calls.denied.len(), calls.allowed.len()), (0, 0));
        let calls = read(&[line("get", "pods", 403, &undecided)]);
        assert_eq!(calls.denied.len(), 1);
    }

    #[test]
    fn a_path_counts_only_when_it_is_denied() {
        let calls = read(&[line("get", "", 200, &json!({ "objectRef": null }))]);
        assert_eq!((calls.allowed.len(), calls.denied.len()), (0, 0));
        let calls = read(&[line("get", "", 403, &json!({ "objectRef": null }))]);
        assert_eq!(calls.denied.keys().next().unwrap().right.to_string(), "get /api/v1/a");
    }

    #[test]
    fn what_was_denied_before_does_not_count() {
        let later = json!({ "requestReceivedTimestamp": "2026-05-01T11:00:00.000000Z" });
        let lines = [("get", 200), ("list", 403)].map(|(verb, code)| line(verb, "pods", code, &json!({})));
        let lines = [lines, [line("list", "pods", 403, &later), line("get", "pods", 200, &later)]].concat();
        let count = |since: &str| {
            let lines = lines.iter().map(|line| Ok(line.to_string().into_bytes()));
            let calls = Calls::read(lines, since.parse().unwrap()).unwrap();
            (
                calls.allowed.into_values().sum::<u64>(),
                calls.denied.into_values().map(|denial| denial.times).sum::<u64>(),
            )
        };
        assert_eq!(count("2026-05-01T09:00:00Z"), (2, 2));
        assert_eq!(count("2026-05-01T10:30:00Z"), (2, 1));
        assert_eq!(count("2026-05-01T11:30:00Z"), (2, 0));
    }

    #[test]
    fn only_the_last_line_may_be_half_written() {
        let whole = line("get", "pods", 200, &json!({})).to_string();
        let read = |lines: &[&str]| {
            let lines = lines.iter().map(|line| Ok(line.as_bytes().to_vec()));
            let calls = Calls::read(lines, Timestamp::UNIX_EPOCH).unwrap();
            (calls.allowed.values().sum::<u64>(), calls.unreadable)
        };
        let half = &whole[..whole.len() / 2];
        assert_eq!(read(&[&whole, half]), (1, 0));
        // A killed API server leaves half a line, to which the next one adds.
        assert_eq!(read(&[&format!("{half}{whole}"), &whole]), (1, 1));
        assert_eq!(read(&["", "{}", "[1]", &whole]), (1, 3));
        let broken = Calls::read([Err(io::Error::other("gone"))], Timestamp::UNIX_EPOCH);
        assert_eq!(broken.unwrap_err().to_string(), "gone");
    }

    proptest! {
        #[test]
        fn a_line_cut_anywhere_is_never_a_call(at in 0_usize..600) {
            let whole = line("get", "pods", 200, &json!({})).to_string();
            let cut = whole.as_bytes()[..at.min(whole.len() - 1)].to_vec();
            let calls = Calls::read([Ok(cut)], Timestamp::UNIX_EPOCH).unwrap();
            prop_assert_eq!(calls, Calls::default());
        }
    }
}
