//! Wrong specs are refused at once, with a message that names the field and the remedy; specs that can't be met say so
//! soon and recover when they are mended.

#[path = "../../../crds/tests/cases/mod.rs"]
mod cases;
#[path = "spec_class.rs"]
mod class;
#[path = "spec_defaults.rs"]
mod defaults;
#[path = "spec_taken.rs"]
mod taken;
#[path = "spec_tightened.rs"]
pub mod tightened;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cases::{Case, right as right_cases, wrong as wrong_cases};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use quorate_crds::ConditionType;
use quorate_e2e::faults::pods;
use quorate_e2e::scene::{
    Cluster, PATIENCE, Said, Scene, Stage, View, Wish, kubectl, play, thorough, usual_etcd, wait_for,
};
use serde_json::{Value, json};

use crate::roll;

/// One wrong spec and the words that the refusal must contain: the field, and the remedy. Where Kubernetes itself refuses by
/// the schema, the words are its own, and `what` says so.
struct Wrong {
    what: &'static str,
    wish: Wish,
    says: &'static [&'static str],
}

fn wrong(what: &'static str, pointer: &str, value: Value, says: &'static [&'static str]) -> Wrong {
    Wrong { what, wish: Wish::new("db", 3).with(pointer, value), says }
}

/// Wrong at creation.
fn wrong_specs() -> Vec<Wrong> {
    let named = |what, name: &str, says| Wrong { what, wish: Wish::new(name, 3), says };
    vec![
        wrong("an even size", "/replicas", json!(2), &["spec.replicas", "choose an odd number"]),
        wrong("another even size", "/replicas", json!(4), &["spec.replicas", "choose an odd number"]),
        wrong("a size too large", "/replicas", json!(9), &["spec.replicas", "must be 1, 3, 5 or 7"]),
        wrong("a negative size", "/replicas", json!(-1), &["spec.replicas", "must be 1, 3, 5 or 7"]),
        wrong("a version that is none", "/version", json!("latest"), &["spec.version", "write it as in 3.6.16"]),
        wrong("a version with a v", "/version", json!("v3.6.16"), &["spec.version", "write it as in 3.6.16"]),
        wrong("an unknown line of etcd", "/version", json!("3.4.30"), &["spec.version", "etcd 3.5, 3.6 or 3.7"]),
        wrong("a future major version", "/version", json!("4.0.0"), &["spec.version", "etcd 3.5, 3.6 or 3.7"]),
        wrong("a volume too small", "/storage/size", json!("100Mi"), &["spec.storage.size", "write it as in 8Gi"]),
        wrong("a size that is none", "/storage/size", json!("large"), &["spec.storage.size", "write it as in 8Gi"]),
        wrong(
            "an unknown retention, by Kubernetes' own check of words",
            "/storage/retention/onDelete",
            json!("Shred"),
            &["spec.storage.retention.onDelete", "supported values", "Retain"],
        ),
        wrong(
            "a reserved flag",
            "/etcd/extraFlags",
            json!({ "data-dir": "/tmp" }),
            &["spec.etcd.extraFlags", "; remove it"],
        ),
        wrong(
            "an identity's flag",
            "/etcd/extraFlags",
            json!({ "initial-cluster": "x" }),
            &["spec.etcd.extraFlags", "; remove it"],
        ),
        wrong(
            "an unknown flag",
            "/etcd/extraFlags",
            json!({ "make-it-fast": "yes" }),
            &["spec.etcd.extraFlags", "; correct or remove it", "log-level"],
        ),
        wrong(
            "a flag with dashes",
            "/etcd/extraFlags",
            json!({ "--log-level": "debug" }),
            &["spec.etcd.extraFlags", "; write log-level, not --log-level"],
        ),
        wrong(
            "a flag's value of another kind",
            "/etcd/extraFlags",
            json!({ "max-wals": "5", "max-snapshots": "five" }),
            &["spec.etcd.extraFlags", "a whole number", "for max-snapshots; write it in digits"],
        ),
        wrong(
            "an election too short",
            "/etcd/electionTimeoutMillis",
            json!(200),
            &["spec.etcd.electionTimeoutMillis", "ten times the heartbeat is right"],
        ),
        wrong(
            "a quota beyond the volume",
            "/etcd/quota",
            json!("8Gi"),
            &["spec.etcd.quota", "; lower the quota or raise the size"],
        ),
        wrong(
            "a resource that is none",
            "/resources/requests",
            json!({ "memroy": "1Gi" }),
            &["spec.resources.requests", "; correct the name"],
        ),
        wrong(
            "hibernation of ephemeral data",
            "",
            json!({ "replicas": 0, "storage": { "size": "1Gi", "ephemeral": true } }),
            &["spec.storage.ephemeral", "; keep at least one member"],
        ),
        wrong(
            "a field that does not exist, by Kubernetes' own check of fields",
            "/replica",
            json!(3),
            &["unknown field", "spec.replica"],
        ),
        named("a name that starts with a digit", "1db", &["metadata.name", "; choose another name"]),
        named(
            "a name too long for its children",
            "a-name-of-forty-one-letters-and-then-some",
            &["metadata.name", "40", "; choose a shorter name"],
        ),
    ]
}

#[tokio::test]
async fn wrong_specs_are_refused_with_the_field_and_the_remedy() -> Result<()> {
    play("spec_wrong", Stage::Shared, async |scene| {
        let mut unexpected = Vec::new();
        for Wrong { what, wish, says } in wrong_specs() {
            let wish = if wish.object()["spec"][""].is_object() {
                let spec = wish.object()["spec"][""].clone();
                Wish::new("db", 3).with("/replicas", spec["replicas"].clone()).with("/storage", spec["storage"].clone())
            } else {
                wish
            };
            let said = scene.apply(&wish.object()).await?;
            match says.iter().find(|word| !said.err.contains(**word)) {
                _ if said.fine => {
                    unexpected.push(format!("{what} was accepted"));
                    scene.cluster(wish.name()).delete().await?;
                }
                Some(missing) => unexpected.push(format!("{what}: {missing:?} is not in: {}", said.err.trim())),
                None => (),
            }
        }
        ensure!(unexpected.is_empty(), "{}", unexpected.join("\n"));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn changes_that_can_not_be_made_are_refused() -> Result<()> {
    play("spec_changes", Stage::Shared, async |scene| {
        let wish = Wish::new("db", 1).with("/storage/size", json!("2Gi"));
        let db = scene.create(&wish).await?;
        let changes = [
            (
                "a shrinking volume",
                wish.clone().with("/storage/size", json!("1Gi")),
                ["spec.storage.size", "; set it to 2Gi or more"],
            ),
            (
                "ephemeral storage",
                wish.clone().with("/storage/ephemeral", json!(true)),
                ["spec.storage.ephemeral", "; set it back"],
            ),
            (
                "another class",
                wish.clone().with("/storage/storageClassName", json!("other")),
                ["spec.storage.storageClassName", "; set it back"],
            ),
            (
                "plain text",
                wish.clone().with("/tls/mode", json!("Disabled")),
                ["spec.tls.mode", "; set it back to Issued"],
            ),
        ];
        for (what, wish, says) in changes {
            let said = scene.apply(&wish.object()).await?.refused().context(what)?;
            for words in says {
                ensure!(said.contains(words), "{what}: {words:?} is not in {said}");
            }
        }
        let said = scene.kubectl(&["scale", "etcd/db", "--replicas=2"]).await?.refused()?;
        ensure!(said.contains("1, 3, 5"), "kubectl scale: {said}");
        db.settles(1).await.map(drop)
    })
    .await
}

impl Case {
    fn object(&self, spec: Option<&Value>) -> Value {
        let metadata = json!({ "name": self.name() });
        let mut object = json!({ "apiVersion": "quorate.dev/v1alpha1", "kind": "EtcdCluster", "metadata": metadata });
        if let Some(spec) = spec {
            object["spec"] = spec.clone();
        }
        object
    }

    /// What a real API server says to it: an accepted spec first, where the case is a change of one; nothing is stored of
    /// the rest.
    async fn said(&self, scene: &Scene) -> Result<Said> {
        if let Some(from) = &self.from {
            // Paused: nothing is started for it.
            let mut from = from.clone();
            from["paused"] = json!(true);
            scene.apply(&self.object(Some(&from))).await?.well().with_context(|| self.id.clone())?;
            let mut spec = self.spec.clone().unwrap_or_default();
            spec["paused"] = json!(true);
            let said = scene.replace_dry(&self.object(Some(&spec))).await?;
            scene.cluster(self.name()).delete().await?;
            return Ok(said);
        }
        scene.apply_dry(&self.object(self.spec.as_ref())).await
    }
}

/// Whether the message that has this part goes on with a remedy. It stands after a semicolon, as the test of the rules demands
/// of each of them; no value in the tables has one.
fn names_a_remedy(said: &Said, part: &str) -> bool {
    let remedy = |line: &str| line.split_once(';').is_some_and(|(_, remedy)| !remedy.trim().is_empty());
    said.err.lines().filter(|line| line.contains(part)).any(remedy)
}

#[tokio::test]
#[ignore = "make e2e"]
async fn every_line_of_the_tables_is_judged_so_by_a_real_api_server() -> Result<()> {
    play("spec_tables", Stage::Shared, async |scene| {
        let mut unexpected = Vec::new();
        for case in wrong_cases().into_iter().chain(right_cases()) {
            let said = case.said(scene).await?;
            match &case.refused {
                Some(refused) if said.fine || !said.err.contains(refused) => {
                    unexpected.push(format!(
                        "{} (schema: {}): {refused:?} is not in: {}",
                        case.id,
                        case.schema,
                        said.err.trim()
                    ));
                }
                // The words of the schema are the API server's own.
                Some(refused) if !case.schema && !names_a_remedy(&said, refused) => {
                    unexpected.push(format!("{}: no remedy is in: {}", case.id, said.err.trim()));
                }
                None if !said.fine => unexpected.push(format!("{} was refused: {}", case.id, said.err.trim())),
                Some(_) | None => (),
            }
        }
        ensure!(unexpected.is_empty(), "{}", unexpected.join("\n"));
        Ok(())
    })
    .await
}

/// How soon a spec that can't be met has to show. In `make test` only that it shows is demanded.
const SOON: Duration = Duration::from_secs(15);

/// Waits until conditions and events name the reason, and then, mended, for the cluster to settle.
async fn shows_and_recovers(scene: &Scene, wish: Wish, reason: &str, mend: Value) -> Result<()> {
    let db = shows(scene, &wish, reason).await?;
    db.patch(mend).await?;
    settles_after(&db).await
}

/// Waits until conditions and events name the reason.
async fn shows(scene: &Scene, wish: &Wish, reason: &str) -> Result<Cluster> {
    let db = scene.create(wish).await?;
    let started = Instant::now();
    db.until(&format!("the condition's reason {reason}"), PATIENCE, |view| {
        let reasons = reasons(view);
        ensure!(reasons.iter().any(|seen| seen == reason), "{reasons:?}");
        Ok(())
    })
    .await?;
    roll::is_told(&db, reason, &[]).await?;
    let took = started.elapsed();
    eprintln!("{reason} was shown within {:.1} s", took.as_secs_f64());
    ensure!(!thorough() || took <= SOON, "{reason} was shown after {:.1} s only", took.as_secs_f64());
    Ok(db)
}

async fn settles_after(db: &Cluster) -> Result<()> {
    let replicas = db.view().await?.object.spec.replicas;
    db.settles(usize::try_from(replicas)?).await.map(drop)
}

/// The conditions that speak of trouble.
const CONDITIONS: [ConditionType; 3] = [ConditionType::Ready, ConditionType::Stalled, ConditionType::Reconciling];

/// Their reasons.
fn reasons(view: &View) -> Vec<String> {
    CONDITIONS.into_iter().filter_map(|of| view.condition(of)).map(|condition| condition.reason.clone()).collect()
}

#[tokio::test]
async fn a_missing_image_is_shown_and_recovers_when_mended() -> Result<()> {
    play("spec_image", Stage::Shared, async |scene| {
        let tag = format!("v{}-missing", usual_etcd());
        let wish = Wish::new("db", 1).with("/image", json!({ "tag": tag, "pullPolicy": "Never" }));
        shows_and_recovers(scene, wish, "ImageMissing", json!({ "spec": { "image": { "tag": null } } })).await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn an_image_that_no_registry_has_is_shown_and_recovers_when_mended() -> Result<()> {
    play("spec_registry", Stage::Shared, async |scene| {
        let wish = Wish::new("db", 1).with("/image", json!({ "repository": "quorate.invalid/etcd" }));
        shows_and_recovers(scene, wish, "ImageMissing", json!({ "spec": { "image": { "repository": null } } })).await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_pod_that_no_node_takes_is_shown_and_recovers_when_mended() -> Result<()> {
    play("spec_unschedulable", Stage::Shared, async |scene| {
        let wish = Wish::new("db", 1).with("/scheduling/nodeSelector", json!({ "quorate.dev/no-such-node": "true" }));
        let mend = json!({ "spec": { "scheduling": { "nodeSelector": null } } });
        shows_and_recovers(scene, wish, "Unschedulable", mend).await
    })
    .await
}

/// A StorageClass of this name that makes volumes as the default one does, but lets none grow.
async fn class(scene: &Scene, name: &str) -> Result<()> {
    let classes = scene.kubectl(&["get", "storageclass", "-o", "json"]).await?.well()?;
    let classes: Value = serde_json::from_str(&classes)?;
    let default = classes["items"].as_array().and_then(|items| items.first()).context("there is no class")?;
    let copy = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": { "name": name },
        "provisioner": default["provisioner"],
        "volumeBindingMode": default["volumeBindingMode"],
        "parameters": default["parameters"],
        "reclaimPolicy": default["reclaimPolicy"],
    });
    scene.apply(&copy).await?.well().map(drop)
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_missing_storage_class_is_shown_and_recovers_when_it_is_there() -> Result<()> {
    play("spec_class", Stage::Shared, async |scene| {
        let name = format!("late-{}", scene.namespace());
        let wish = Wish::new("db", 1).with("/storage/storageClassName", json!(name));
        let db = shows(scene, &wish, "StorageClassMissing").await?;
        // Once it is there, it goes on by itself.
        class(scene, &name).await?;
        let settled = db.settles(1).await;
        let deleted = kubectl(&["delete", "storageclass", &name], None).await?;
        settled?;
        deleted.well().map(drop)
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn volumes_grow_with_the_spec_and_those_that_can_not_are_told_and_go_on() -> Result<()> {
    play("spec_growth", Stage::Shared, async |scene| {
        let larger = json!({ "spec": { "storage": { "size": "2Gi" } } });
        let db = scene.create(&Wish::new("db", 3)).await?;
        db.settles(3).await?;
        db.patch(larger.clone()).await?;
        db.until("all claims to ask for more", PATIENCE, |view| {
            let asked = |claim: &PersistentVolumeClaim| {
                let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
                Some(requests.get("storage")?.0 == "2Gi")
            };
            ensure!(view.claims.values().all(|claim| asked(claim) == Some(true)), "{}", view.summary());
            Ok(())
        })
        .await?;
        db.settles(3).await?;

        let name = format!("fixed-{}", scene.namespace());
        class(scene, &name).await?;
        let fixed = scene.create(&Wish::new("fixed", 1).with("/storage/storageClassName", json!(name))).await?;
        let told = async {
            fixed.settles(1).await?;
            fixed.patch(larger).await?;
            fixed
                .until("the volume that can't grow to be told", PATIENCE, |view| {
                    let stalled = view.condition(ConditionType::Stalled).context("no Stalled")?;
                    let says = stalled.status == "True" && stalled.message.contains("fixed-0");
                    ensure!(says && stalled.reason == "ObjectRefused", "{}: {}", stalled.reason, stalled.message);
                    Ok(())
                })
                .await?;
            // All else goes on.
            pods::delete_by_force(&fixed, &["fixed-0"]).await?;
            wait_for("the member to serve again", PATIENCE, async || fixed.put("hello", "world").await).await
        };
        let told = told.await;
        let deleted = kubectl(&["delete", "storageclass", &name], None).await?;
        told?;
        deleted.well().map(drop)
    })
    .await
}
