//! The user's flags on the way through the versions: each member runs with them in the words of its own version, as its
//! process says.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use quorate_e2e::scene::{Scene, Stage, Wish, Writer, play};
use serde_json::{Value, json};

use super::roll::arguments;
use super::upgrade::{V3_5, V3_6, V3_7, arrives, goes_to, in_place, is_refused};

/// Flags that 3.5 knows with a prefix, which 3.7 does not take any more.
const RENAMED: [(&str, &str); 2] = [("corrupt-check-time", "1h"), ("warning-apply-duration", "300ms")];
const PREFIX: &str = "experimental-";
/// A feature, which is set throughout, and the flag that 3.5 has for it.
const FEATURE: (&str, &str) = ("feature-gates", "StopGRPCServiceOnDefrag=true");
const FEATURE_ON_3_5: (&str, &str) = ("stop-grpc-service-on-defrag", "true");
/// A flag that 3.5 does not have.
const LATER: (&str, &str) = ("warning-unary-request-duration", "500ms");

/// Flags as `spec.etcd.extraFlags` has them, with the feature.
fn extra_flags(flags: &[(&str, &str)]) -> Value {
    flags.iter().chain([&FEATURE]).copied().collect()
}

/// Demands that each of three members runs with these of the flags and the feature, in the words of this version and of no other.
fn run_in_the_words_of(version: &str, scene: &Scene, flags: &[(&str, &str)]) -> Result<()> {
    let (prefix, feature) = if version == V3_5 { (PREFIX, FEATURE_ON_3_5) } else { ("", FEATURE) };
    let due: BTreeSet<String> =
        flags.iter().chain([&feature]).map(|(name, value)| format!("--{prefix}{name}={value}")).collect();
    for (member, given) in arguments(scene, 3)? {
        let given: BTreeSet<String> = given.into_iter().filter(|argument| is_the_users(argument)).collect();
        ensure!(given == due, "{member} runs on {version} with {given:?}, not {due:?}");
    }
    Ok(())
}

/// Whether it is one of the flags that are set here, in the words of whatever version.
fn is_the_users(argument: &str) -> bool {
    let flag = argument.trim_start_matches('-');
    let (name, _) = flag.split_once('=').unwrap_or((flag, ""));
    let name = name.strip_prefix(PREFIX).unwrap_or(name);
    RENAMED.iter().chain([&FEATURE, &FEATURE_ON_3_5, &LATER]).any(|(set, _)| *set == name)
}

/// On the last part of it a flag comes that the first version does not have.
#[tokio::test]
#[ignore = "make e2e"]
async fn flags_are_in_the_words_of_each_version_on_the_way_up() -> Result<()> {
    play("upgrade_flags_up", Stage::Shared, async |scene| {
        let wish = Wish::new("db", 3).version(V3_5).with("/etcd/extraFlags", extra_flags(&RENAMED));
        let db = scene.create(&wish).await?;
        db.settles(3).await?;
        run_in_the_words_of(V3_5, scene, &RENAMED)?;
        let writer = Writer::start(&db, "w").await?;
        in_place(&db, async || goes_to(&db, V3_6).await.map(drop)).await?;
        run_in_the_words_of(V3_6, scene, &RENAMED)?;
        let later = extra_flags(&[LATER]);
        db.patch(json!({ "spec": { "version": V3_7, "etcd": { "extraFlags": later } } })).await?;
        arrives(&db).await?;
        db.settles(3).await?;
        run_in_the_words_of(V3_7, scene, &[RENAMED.as_slice(), &[LATER]].concat())?;
        writer.stop().await?.check(&db).await
    })
    .await
}

/// To the last version only without the flag that it does not have.
#[tokio::test]
#[ignore = "make e2e"]
async fn flags_are_in_the_words_of_each_version_on_the_way_down() -> Result<()> {
    play("upgrade_flags_down", Stage::Shared, async |scene| {
        let all = [RENAMED.as_slice(), &[LATER]].concat();
        let wish = Wish::new("db", 3).version(V3_7).with("/etcd/extraFlags", extra_flags(&all));
        let db = scene.create(&wish).await?;
        db.settles(3).await?;
        run_in_the_words_of(V3_7, scene, &all)?;
        let writer = Writer::start(&db, "w").await?;
        in_place(&db, async || goes_to(&db, V3_6).await.map(drop)).await?;
        run_in_the_words_of(V3_6, scene, &all)?;
        is_refused(&db, json!({ "spec": { "version": V3_5 } }), "etcd 3.5 does not have").await?;
        let (later, _) = LATER;
        db.patch(json!({ "spec": { "version": V3_5, "etcd": { "extraFlags": { later: null } } } })).await?;
        arrives(&db).await?;
        db.settles(3).await?;
        run_in_the_words_of(V3_5, scene, &RENAMED)?;
        writer.stop().await?.check(&db).await
    })
    .await
}
