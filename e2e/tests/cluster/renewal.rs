//! Certificates that run out while somebody writes, reads and watches, and while what is written is recorded: they are renewed
//! without a failed call and without a restart.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use etcd_client::{Client, WatchOptions, WatchStream};
use futures::future::try_join_all;
use jiff::Timestamp;
use quorate_crds::ConditionType;
use quorate_e2e::faults::pods;
use quorate_e2e::scene::{Cluster, Door, Gateway, PATIENCE, Scene, Stage, dial, metrics, play, told, wait_for};
use serde_json::json;

use crate::archive;
use crate::operator::leader_tells;
use crate::roll::is_told;
use crate::tls::{certificates, none_was_restarted, peer_certificates};

/// The shortest lifetime that there may be.
const LIFETIME: Duration = Duration::from_mins(5);
/// How long is written: beyond the time at which the first certificates run out, with those that were backdated.
const WRITING: Duration = Duration::from_mins(6);
/// The pause of each client between two calls.
const PAUSE: Duration = Duration::from_millis(100);
/// How often the Secret is read anew, as an application that follows its files does.
const KEYS_INTERVAL: Duration = Duration::from_secs(1);
const SECONDS_OF_A_DAY: f64 = 86_400.0;
/// What is written over connections that last, and the last of it.
const KEPT: &str = "kept/";
const LAST: &str = "kept/last";

#[tokio::test]
#[ignore = "make e2e"]
async fn certificates_are_renewed_under_a_writer_without_a_failed_call() -> Result<()> {
    play("tls_renewal", Stage::Shared, async |scene| {
        let minutes = LIFETIME.as_secs() / 60;
        let gateway = Gateway::start().await?;
        let wish = archive::wish(&gateway).with("/tls/lifetimeMinutes", json!(minutes));
        let db = archive::begin_with(scene, wish).await?;
        let before = db.identities().await?;
        let members: Vec<String> = before.keys().cloned().collect();
        let (served, kept) = (certificates(&db).await?, peer_certificates(&db).await?);
        tells_the_days_left(scene).await?;
        let first_until = valid_until(&db).await?;
        let generation = archive::recorded_into(&db, archive::SOON).await?;
        let doors = db.voters_doors().await?;
        ensure!(doors.len() == members.len(), "not all of {members:?} have an address");
        let (_watcher, mut watch) = watched(doors.values().next().context("there is no member")?).await?;
        let calling = async {
            let lasting = try_join_all(doors.iter().map(|(member, door)| calls_over_one(member, door)));
            let (calls, puts) = tokio::try_join!(calls_over_many(&db, &members), lasting)?;
            db.put(LAST, "x").await?;
            anyhow::Ok((calls, puts.iter().sum::<u64>()))
        };
        let ((calls, puts), seen) = tokio::try_join!(calling, sees_all(&mut watch))?;
        ensure!(seen == puts, "the watch has seen {seen} of {puts} puts");
        eprintln!("{calls} calls over as many connections, {puts} puts over {}, none failed", doors.len());
        for (member, certificate) in &certificates(&db).await? {
            ensure!(served.get(member) != Some(certificate), "{member} shows the certificate that it began with");
        }
        for (member, certificate) in &peer_certificates(&db).await? {
            ensure!(kept.get(member) != Some(certificate), "{member} shows the others what it began with");
        }
        // What was not renewed would have none left by now.
        tells_the_days_left(scene).await?;
        // Nobody has waited for the sidecars: what they showed etcd when they began has run out.
        let now = archive::recorded_into(&db, archive::SOON).await?;
        ensure!(now == generation, "the archive began another generation than {generation}: {now}");
        archive::is_healthy(&db, true).await?;
        // Nothing was restarted, and members that connect anew are let in.
        none_was_restarted(&db.view().await?)?;
        pods::delete_by_force(&db, &[&members[0]]).await?;
        db.settles(3).await?;
        db.is_the_same_as(&before).await?;
        let until = valid_until(&db).await?;
        ensure!(until > first_until, "the condition said {first_until} and says {until}");
        is_told(&db, "CertificatesRenewed", &["db-0", "They are valid until "]).await
    })
    .await
}

/// Until when all certificates are valid, as the condition tells it.
async fn valid_until(db: &Cluster) -> Result<Timestamp> {
    let view = db.view().await?;
    let condition = view.condition(ConditionType::CertificatesValid).context("there is no condition")?;
    ensure!(condition.status == "True", "it is {}: {}", condition.status, condition.message);
    let mut words = condition.message.split_whitespace().map(|word| word.trim_end_matches(['.', ',', ':', ';']));
    words.find_map(|word| word.parse().ok()).with_context(|| format!("no moment is in {}", condition.message))
}

/// Writes for a while, each time over a connection of its own and to the next member; how many calls that were.
async fn calls_over_many(db: &Cluster, members: &[String]) -> Result<u32> {
    let (started, mut doors, mut calls, mut read) = (Instant::now(), BTreeMap::new(), 0_u32, None::<Instant>);
    while started.elapsed() < WRITING {
        if read.is_none_or(|read| read.elapsed() >= KEYS_INTERVAL) {
            (doors, read) = (db.voters_doors().await?, Some(Instant::now()));
        }
        let member = &members[usize::try_from(calls)? % members.len()];
        let put = async {
            let mut client = dial(doors.get(member).context("it has no address")?).await?;
            client.put(format!("w/{calls}"), "x", None).await.map_err(told)
        };
        put.await.with_context(|| format!("call {calls} to {member} after {:?}", started.elapsed()))?;
        calls += 1;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(calls)
}

/// Writes and reads for a while over one connection to this member; how many puts that were. What is shown is never read
/// anew: once it has run out, a connection that broke could not even be replaced.
async fn calls_over_one(member: &str, door: &Door) -> Result<u64> {
    let (started, key, mut puts) = (Instant::now(), format!("{KEPT}{member}"), 0_u64);
    let mut client = dial(door).await?;
    while started.elapsed() < WRITING {
        let value = puts.to_string();
        let call = async {
            client.put(key.as_str(), value.as_str(), None).await.map_err(told)?;
            let read = client.get(key.as_str(), None).await.map_err(told)?;
            let found = read.kvs().first().map(|pair| String::from_utf8_lossy(pair.value()).into_owned());
            ensure!(found.as_deref() == Some(value.as_str()), "it reads {found:?}, not {value}");
            anyhow::Ok(())
        };
        call.await
            .with_context(|| format!("put {puts} over one connection to {member} after {:?}", started.elapsed()))?;
        puts += 1;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(puts)
}

/// A watch of all that is written over connections that last, which is never opened again; with its client.
async fn watched(door: &Door) -> Result<(Client, WatchStream)> {
    let mut client = dial(door).await?;
    let mut watch = client.watch(KEPT, Some(WatchOptions::new().with_prefix())).await.map_err(told)?;
    let first = watch.message().await.map_err(told)?.context("the watch ended at once")?;
    ensure!(first.created(), "the watch was not created");
    Ok((client, watch))
}

/// Follows a watch to the last write; how many it has seen before that.
async fn sees_all(watch: &mut WatchStream) -> Result<u64> {
    let mut seen = 0;
    loop {
        let message = tokio::time::timeout(PATIENCE, watch.message()).await.context("the watch is silent")?;
        let response = message.map_err(told).context("the watch broke")?.context("the watch ended")?;
        ensure!(!response.canceled(), "the watch was cancelled: {}", response.cancel_reason());
        for event in response.events() {
            if event.kv().is_some_and(|pair| pair.key() == LAST.as_bytes()) {
                return Ok(seen);
            }
            seen += 1;
        }
    }
}

/// Waits until the operator's metrics tell as many days as certificates have left that are renewed in time. They tell them of
/// the cluster whose first runs out first of all, and no other scene has certificates of the shortest lifetime.
async fn tells_the_days_left(scene: &Scene) -> Result<()> {
    let lifetime = LIFETIME.as_secs_f64();
    wait_for("the days left in the operator's metrics", PATIENCE, async || {
        let text = leader_tells(scene).await?;
        let days = metrics::gauge(&text, "quorate_certificates_days_left").context("it tells of no certificates")?;
        let left = days * SECONDS_OF_A_DAY;
        ensure!(left > lifetime / 4.0 && left <= lifetime, "{left} s are left, of {lifetime}");
        Ok(())
    })
    .await
}
