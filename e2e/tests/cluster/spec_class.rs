//! A cluster that names no StorageClass, where none is the default. The default is taken away for a while, by a scene that is
//! alone, and given back however that ends.

use anyhow::{Context as _, Result, ensure};
use quorate_e2e::scene::{Stage, Wish, kubectl, play};
use serde_json::Value;

use super::{CONDITIONS, shows};

/// Marks the class that a claim gets which names none.
const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

async fn classes() -> Result<Vec<Value>> {
    let classes = kubectl(&["get", "storageclass", "-o", "json"], None).await?.well()?;
    let mut classes: Value = serde_json::from_str(&classes)?;
    serde_json::from_value(classes["items"].take()).context("the classes are no list")
}

/// Says of each of these classes whether it is a default.
async fn mark(classes: &[String], is_default: bool) -> Result<()> {
    for class in classes {
        let mark = format!("{DEFAULT}={is_default}");
        kubectl(&["annotate", "--overwrite", "storageclass", class, &mark], None).await?.well()?;
    }
    Ok(())
}

/// As long as it is held, no class is the default.
struct NoDefault(Vec<String>);

impl NoDefault {
    async fn begin() -> Result<Self> {
        let classes = classes().await?.into_iter();
        let defaults = classes.filter(|class| class["metadata"]["annotations"][DEFAULT] == "true");
        let names = defaults.filter_map(|class| class["metadata"]["name"].as_str().map(str::to_owned));
        // Held from here: what fails below is taken back too.
        let held = Self(names.collect());
        ensure!(!held.0.is_empty(), "there is no default class to take away");
        mark(&held.0, false).await?;
        Ok(held)
    }

    async fn end(mut self) -> Result<()> {
        mark(&self.0, true).await?;
        self.0.clear();
        Ok(())
    }
}

impl Drop for NoDefault {
    /// For a scene that failed: nobody polls it any more, so a runtime of its own does it.
    fn drop(&mut self) {
        let classes = std::mem::take(&mut self.0);
        if classes.is_empty() {
            return;
        }
        let mark_anew = move || -> Result<()> { tokio::runtime::Runtime::new()?.block_on(mark(&classes, true)) };
        let given_back = std::thread::spawn(mark_anew);
        if let Ok(Err(error)) = given_back.join() {
            eprintln!("failed to give the default class back: {error:#}");
        }
    }
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_missing_default_class_is_shown_with_the_remedy_and_the_cluster_runs_once_there_is_one() -> Result<()> {
    play("spec_default_class", Stage::Alone, async |scene| {
        let without = NoDefault::begin().await?;
        let db = shows(scene, &Wish::new("db", 1), "StorageClassMissing").await?;
        let view = db.view().await?;
        let conditions = CONDITIONS.into_iter().filter_map(|of| view.condition(of));
        let told: Vec<_> = conditions.filter(|told| told.reason == "StorageClassMissing").collect();
        let says = |words: &str| told.iter().any(|told| told.message.contains(words));
        for words in ["db-0", "make one the default", "spec.storage.storageClassName"] {
            ensure!(says(words), "{words:?} is not in {told:?}");
        }
        // Kubernetes gives the waiting claim the class, and it goes on by itself.
        without.end().await?;
        db.settles(1).await.map(drop)
    })
    .await
}
