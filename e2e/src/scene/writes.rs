//! What the operator writes, by the API server's audit log, and that it writes nothing where a cluster is at rest. It reads
//! the log only; when a cluster should be at rest is for a scene to say.

use std::io;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{LAB_VARIABLE, PATIENCE, Scene, stays, thorough, wait_for};
use crate::lab::{AuditEnd, Lab};
use crate::rbac::ACCOUNT;

/// For how long nothing is written until a rest counts as begun. An event, or a status of what Kubernetes noticed last, comes
/// a little later than what a scene waited for.
const CALM: Duration = Duration::from_secs(5);
/// The verbs that write nothing.
const READS: [&str; 3] = ["get", "list", "watch"];

/// A call of the operator that writes an object other than its Lease. Events count: by the design they are told on
/// transitions only, of which a cluster at rest has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorWrite {
    /// When the API server got it.
    pub received: Timestamp,
    /// The object's namespace; empty outside of all.
    pub namespace: String,
    /// The verb, the resource and the object's name, as in `patch etcdclusters/status db`.
    pub call: String,
}

/// What a line of the log says, as far as it matters here.
#[derive(Debug)]
enum Line {
    /// The operator wrote its Lease at that time.
    Renewal(Timestamp),
    /// It wrote something else.
    Write(OperatorWrite),
}

/// None: nobody's business, or half a line, as the last one may be.
fn read(line: &[u8]) -> Option<Line> {
    let said: Value = serde_json::from_slice(line).ok()?;
    let verb = said["verb"].as_str()?;
    if said["user"]["username"] != ACCOUNT || READS.contains(&verb) {
        return None;
    }
    let received = said["requestReceivedTimestamp"].as_str()?.parse().ok()?;
    let of = |field: &str| said["objectRef"][field].as_str().unwrap_or_default();
    let (resource, part) = (of("resource"), of("subresource"));
    if resource == "leases" {
        return Some(Line::Renewal(received));
    }
    let target = if part.is_empty() { resource.to_owned() } else { format!("{resource}/{part}") };
    let call = format!("{verb} {target} {}", of("name"));
    Some(Line::Write(OperatorWrite { received, namespace: of("namespace").to_owned(), call }))
}

/// The operator's writes in an audit log since then, without its Lease.
pub fn operator_writes(
    lines: impl Iterator<Item = io::Result<Vec<u8>>>,
    since: Timestamp,
) -> io::Result<Vec<OperatorWrite>> {
    let mut writes = vec![];
    for line in lines {
        match read(&line?) {
            Some(Line::Write(write)) if write.received >= since => writes.push(write),
            Some(Line::Write(_) | Line::Renewal(_)) | None => (),
        }
    }
    Ok(writes)
}

/// Runs `body`, in which a cluster is at rest, and demands that the operator was there and wrote nothing to the scene's
/// objects from before to after it. Only the local cluster has a log that tells; elsewhere `body` runs alone. So it does
/// where the unit tests run beside the scenes: a member that is starved for a moment is a transition, and no rest.
pub async fn unwritten_during<T>(scene: &Scene, body: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
    if std::env::var_os(LAB_VARIABLE).is_none() {
        eprintln!("scene {}: what the operator writes is told by the local cluster only", scene.name());
        return body().await;
    }
    if !thorough() {
        return body().await;
    }
    let lab = Lab::from_env()?;
    wait_for("the operator to write no more", 2 * PATIENCE, async || {
        let rest = Rest::begins(&lab)?;
        stays("the rest", CALM, async || rest.is_unwritten(scene)).await
    })
    .await?;
    let rest = Rest::begins(&lab)?;
    let outcome = body().await?;
    let over = Timestamp::now();
    // The log is written in order, and not at once: with a call from after the rest it has all those of it.
    wait_for("the operator to renew its Lease", PATIENCE, async || rest.has_renewal_since(over)).await?;
    rest.is_unwritten(scene)?;
    Ok(outcome)
}

/// A rest, from its beginning on.
struct Rest<'l> {
    lab: &'l Lab,
    began: Timestamp,
    log: AuditEnd,
}

impl<'l> Rest<'l> {
    fn begins(lab: &'l Lab) -> Result<Self> {
        let log = lab.audit_log()?.end().context("failed to look at the audit log")?;
        Ok(Self { lab, began: Timestamp::now(), log })
    }

    /// What the log has of it so far.
    fn lines(&self) -> Result<impl Iterator<Item = io::Result<Vec<u8>>> + use<>> {
        let log = self.lab.audit_log()?.after(self.log).context("failed to look at the audit log")?;
        Ok(log.lines())
    }

    /// Demands that the operator wrote nothing to the scene's objects.
    fn is_unwritten(&self, scene: &Scene) -> Result<()> {
        let writes = operator_writes(self.lines()?, self.began).context("failed to read the audit log")?;
        let ours: Vec<_> = writes.into_iter().filter(|write| write.namespace == scene.namespace()).collect();
        ensure!(ours.is_empty(), "the operator wrote {} times since {}: {ours:?}", ours.len(), self.began);
        Ok(())
    }

    /// Demands that the operator has renewed its Lease since then.
    fn has_renewal_since(&self, time: Timestamp) -> Result<()> {
        for line in self.lines()? {
            match read(&line.context("failed to read the audit log")?) {
                Some(Line::Renewal(received)) if received >= time => return Ok(()),
                Some(Line::Renewal(_) | Line::Write(_)) | None => (),
            }
        }
        anyhow::bail!("it did not since {time}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_operators_writes_count_and_not_its_lease() {
        let line = |user: &str, verb: &str, resource: &str, time: &str| {
            let of = json!({ "resource": resource, "namespace": "prod", "name": "db", "subresource": "status" });
            let line = json!({ "user": { "username": user }, "verb": verb, "objectRef": of,
                               "requestReceivedTimestamp": time });
            line.to_string()
        };
        let (before, after) = ("2026-05-01T09:59:59.999999Z", "2026-05-01T10:00:00.000001Z");
        let log = [
            line(ACCOUNT, "patch", "etcdclusters", after),
            line(ACCOUNT, "update", "leases", after),
            line(ACCOUNT, "get", "pods", after),
            line(ACCOUNT, "patch", "pods", before),
            line("other", "patch", "pods", after),
            "half a li".into(),
        ];
        let lines = log.map(|line| Ok(line.into_bytes())).into_iter();
        let write = OperatorWrite {
            received: after.parse().unwrap(),
            namespace: "prod".into(),
            call: "patch etcdclusters/status db".into(),
        };
        assert_eq!(operator_writes(lines, "2026-05-01T10:00:00Z".parse().unwrap()).unwrap(), [write]);
    }

    #[test]
    fn a_renewal_is_told_from_all_else() {
        let line = json!({ "user": { "username": ACCOUNT }, "verb": "update", "objectRef": { "resource": "leases" },
                           "requestReceivedTimestamp": "2026-05-01T10:00:00Z" });
        assert!(matches!(read(line.to_string().as_bytes()), Some(Line::Renewal(_))));
        assert!(read(b"half a li").is_none());
    }
}
