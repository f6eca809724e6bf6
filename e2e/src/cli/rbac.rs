//! What became of the operator's rights on a local cluster: asks it for the roles and for its audit log, and tells what
//! follows. Compares nothing itself.

use anyhow::Context as _;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::lab::{Lab, LabName};
use crate::rbac::{Calls, Comparison, granted};

/// What kubectl prints for objects of several kinds.
#[derive(Deserialize)]
struct List {
    items: Vec<Value>,
}

/// The operator's rights beside its calls: all that were allowed since the lab was brought up, and those that were
/// denied since then.
async fn compare(lab: &LabName, denied_since: Timestamp) -> anyhow::Result<Comparison> {
    let lab = Lab::open(lab.clone())?;
    let kinds = "clusterroles,clusterrolebindings,roles,rolebindings";
    let answer = lab.kubectl().args(["get", kinds, "--all-namespaces", "--output=json"]).run().await?;
    let List { items } = serde_json::from_str(&answer).context("failed to read kubectl's answer")?;
    let grants = granted(items)?;
    let log = lab.audit_log()?;
    let may_be_cut_off = log.may_be_cut_off();
    let calls = Calls::read(log.lines(), denied_since).context("failed to read the audit log")?;
    Ok(Comparison::new(grants, calls, may_be_cut_off))
}

/// Shows all that the lab's log says. Returns the exit code: 1 if a right was lacking.
pub async fn show(lab: &LabName) -> anyhow::Result<u8> {
    let comparison = compare(lab, Timestamp::UNIX_EPOCH).await?;
    print!("{}\n{}", comparison.table(), comparison.summary());
    Ok(u8::from(comparison.lacks_a_right()))
}

/// Tells what the tests that began then have shown. Whether the run fails by it: a lacking right is always a mistake,
/// and one that is never used is one when `every` scene was played.
pub async fn judge(lab: &LabName, began: Timestamp, every: bool) -> anyhow::Result<bool> {
    let comparison = compare(lab, began).await.context("failed to compare the operator's rights with its calls")?;
    print!("{}", comparison.summary());
    if comparison.lacks_a_right() {
        println!("The run fails: the operator was denied a call that its roles have to allow.");
    }
    let wasteful = every && comparison.has_an_unused_right();
    if wasteful {
        println!("The run fails: the operator has rights that it never used in any scene.");
    }
    Ok(comparison.lacks_a_right() || wasteful)
}
