//! Who may bring a ticket to a launcher that waits for one, and which. The port is open to all; a ticket is a signed one
//! for this pod, or none.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, anyhow, ensure};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, EnvVar, Pod};
use kube::api::{ObjectMeta, PostParams};
use quorate_e2e::scene::{Cluster, PATIENCE, Scene, Stage, Wish, etcd_processes, metrics, play, usual_etcd, wait_for};
use serde_json::json;

/// Where a launcher takes tickets, and where it tells how it is.
const TICKETS: &str = "/ticket";
const REPORT: &str = "/quorate";
/// In what a launcher finds the key whose tickets it takes.
const KEY_VARIABLE: &str = "QUORATE_TICKET_KEY";

/// A launcher without a ticket.
struct Waiting {
    uid: String,
    address: String,
}

/// Starts a launcher that belongs to no cluster: a member's pod, without ticket and labels, on an empty volume. It trusts
/// the operator, or this key.
async fn waiting(scene: &Scene, db: &Cluster, name: &str, trusted: Option<&Ed25519KeyPair>) -> Result<Waiting> {
    let member = db.pods().get("db-0").await?;
    let mut spec = member.spec.context("a pod without a spec")?;
    (spec.hostname, spec.subdomain, spec.node_name, spec.affinity) = (None, None, None, None);
    let volumes = spec.volumes.iter_mut().flatten();
    for volume in volumes.filter(|volume| volume.name == "data") {
        volume.persistent_volume_claim = None;
        volume.empty_dir = Some(EmptyDirVolumeSource::default());
    }
    let etcd = spec.containers.iter_mut().find(|container| container.name == "etcd").context("no container etcd")?;
    let own = [("QUORATE_MEMBER", name.to_owned()), ("QUORATE_VOLUME", format!("volume-of-{name}"))];
    let key = trusted.map(|key| (KEY_VARIABLE, hexadecimal(key.public_key().as_ref())));
    let env = etcd.env.as_mut().context("the container has no environment")?;
    ensure!(env.iter().any(|variable| variable.name == KEY_VARIABLE), "members know no key");
    for (variable, value) in own.into_iter().chain(key) {
        env.retain(|other| other.name != variable);
        env.push(EnvVar { name: variable.to_owned(), value: Some(value), value_from: None });
    }
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let pods = scene.api::<Pod>();
    let made = pods.create(&PostParams::default(), &Pod { metadata, spec: Some(spec), status: None }).await?;
    let uid = made.metadata.uid.context("a pod without a UID")?;
    let address = wait_for("the launcher to wait for a ticket", PATIENCE, async || {
        let address = pods.get(name).await?.status.and_then(|status| status.pod_ip).context("it has no address")?;
        says(&address, "NoTicket").await?;
        Ok(address)
    });
    Ok(Waiting { uid, address: address.await? })
}

/// Demands that the launcher gives this reason for not having started etcd.
async fn says(address: &str, reason: &str) -> Result<()> {
    let (status, report) = metrics::ask(address, REPORT).await?;
    ensure!(status == 200 && report.contains(&format!("{reason:?}")), "it answers {status}: {report}");
    Ok(())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// For the etcd that is in the pods' image: a launcher looks at the version before all else.
fn ticket(member: &str, volume: &str) -> String {
    json!({ "start": "create", "member": member, "volume": volume, "version": usual_etcd(), "flags": [] }).to_string()
}

/// A ticket's envelope: addressed to one pod, signed for another.
fn envelope(key: &Ed25519KeyPair, addressed: &str, signed: &str, ticket: &str) -> String {
    let signature = key.sign(format!("{signed}\n{ticket}").as_bytes());
    json!({ "pod": addressed, "ticket": ticket, "signature": hexadecimal(signature.as_ref()) }).to_string()
}

#[tokio::test]
async fn a_launcher_takes_no_ticket_of_a_stranger_and_none_of_another_member() -> Result<()> {
    play("ticket", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 1)).await?;
        db.settles(1).await?;
        let key = || Ed25519KeyPair::generate().map_err(|_| anyhow!("failed to make a key"));
        let (ours, stranger) = (key()?, key()?);
        let (of_operator, of_ours, of_ours_too) = tokio::try_join!(
            waiting(scene, &db, "stray-0", None),
            waiting(scene, &db, "stray-1", Some(&ours)),
            waiting(scene, &db, "stray-2", Some(&ours)),
        )?;
        // One that would start etcd, if it were taken.
        let good = ticket("stray-0", "volume-of-stray-0");
        let refused = [
            ("a stranger's", envelope(&stranger, &of_operator.uid, &of_operator.uid, &good), 403, &of_operator),
            (
                "one without a signature",
                json!({ "pod": of_operator.uid, "ticket": good }).to_string(),
                400,
                &of_operator,
            ),
            ("no envelope", good.clone(), 400, &of_operator),
            ("one to another pod", envelope(&ours, &of_operator.uid, &of_operator.uid, &good), 403, &of_ours),
            ("one signed for another pod", envelope(&ours, &of_ours.uid, &of_operator.uid, &good), 403, &of_ours),
        ];
        for (what, body, expected, launcher) in refused {
            let (status, answer) = wait_for("an answer of the launcher", PATIENCE, async || {
                metrics::bring(&launcher.address, TICKETS, body.clone()).await
            })
            .await?;
            ensure!(status == expected, "{what} is answered with {status}: {answer}");
            wait_for(&format!("no ticket to be there after {what}"), PATIENCE, async || {
                says(&launcher.address, "NoTicket").await
            })
            .await?;
        }
        // Rightly signed, and of another member or volume: taken, and not followed.
        let wrong = [
            (&of_ours, ticket("stray-2", "volume-of-stray-1"), "OtherMember"),
            (&of_ours_too, ticket("stray-2", "volume-of-stray-1"), "OtherVolume"),
        ];
        for (launcher, ticket, reason) in wrong {
            let body = envelope(&ours, &launcher.uid, &launcher.uid, &ticket);
            let (status, answer) = metrics::bring(&launcher.address, TICKETS, body).await?;
            ensure!(status == 202, "a signed ticket is answered with {status}: {answer}");
            wait_for(&format!("{reason} to be told"), PATIENCE, async || says(&launcher.address, reason).await).await?;
        }
        let running = etcd_processes(scene.namespace());
        ensure!(running.iter().all(|process| process.member() == "db-0"), "these run: {running:?}");
        Ok(())
    })
    .await
}
