//! Runs the tests against a cluster: everything is built outside first, then the test program alone is started where the
//! cluster can be reached. Judges nothing itself; whether the operator's rights were right can be said in the end only.

use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::Context as _;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::cluster::{Context, code};
use super::rbac;
use crate::command::Command;
use crate::deploy;
use crate::images;
use crate::lab::NODES_MAX;
use crate::progress::Progress;
use crate::provider::Provider;
use crate::scene::{self, ETCD_VARIABLE};
use crate::tools::{self, Tool};
use crate::workspace;

/// The test program.
const TARGET: &str = "cluster";

/// Which tests to run and how.
#[derive(Debug, Clone)]
pub struct Choice {
    /// Every test, not the usual choice.
    pub all: bool,
    /// How many at a time.
    pub jobs: Option<u16>,
    /// The operator is there.
    pub no_deploy: bool,
    /// The version of etcd where a test names none.
    pub etcd: Option<String>,
    /// Parts of names.
    pub filter: Vec<String>,
}

impl Choice {
    /// Whether it leaves no test out.
    fn is_every(&self) -> bool {
        self.all && self.filter.is_empty() && self.etcd.is_none()
    }
}

/// Runs them. Returns the exit code.
pub async fn run(context: &Context, choice: Choice) -> anyhow::Result<u8> {
    let progress = Progress::new();
    let program = build(&progress).await?;
    let provider = context.provider().await?;
    // The scenes' stores, which can't be fetched any more from where the scenes run. Azurite takes Node.js, and no scene of the
    // usual choice takes azurite.
    tools::build(Tool::VersityGw, &progress).await?;
    if choice.all {
        tools::build(Tool::Azurite, &progress).await?;
    }
    provider.up(NODES_MAX, &progress).await?;
    match &provider {
        Provider::Local(_) | Provider::Kind(_) if choice.all => {
            provider.load(&images::of_scenes(&progress).await?).await?;
        }
        Provider::Local(_) | Provider::Kind(_) | Provider::Current(_) => {}
    }
    if !choice.no_deploy {
        deploy::deploy(&provider, &progress).await?;
    }
    // What an operator of before was denied is no fault of this one.
    let (began, at) = (Timestamp::now(), SystemTime::now());
    let command = provider
        .exec(&program.display().to_string())?
        .env("QUORATE_PROVIDER", provider.kind().to_string())
        .env("RUST_LIB_BACKTRACE", "0")
        .env("QUORATE_TESTS", if choice.all { "all" } else { "choice" })
        .env(ETCD_VARIABLE, choice.etcd.as_deref().unwrap_or_default())
        .args(arguments(&choice));
    let tests = code(command.show().await?);
    if let Some(failed) = scene::failed_since(at).filter(|_| tests != 0) {
        println!("\n{failed}");
    }
    let rights_are_wrong = match &provider {
        Provider::Local(lab) => rbac::judge(lab, began, choice.is_every()).await?,
        Provider::Kind(_) | Provider::Current(_) => false,
    };
    Ok(if tests == 0 { u8::from(rights_are_wrong) } else { tests })
}

/// The arguments of the test program: long tests are marked `#[ignore]`. What every test measured is kept of all of them
/// only: a choice is for a quick look.
fn arguments(choice: &Choice) -> Vec<String> {
    let Choice { all, jobs, no_deploy: _, etcd: _, filter } = choice;
    let mut arguments = filter.clone();
    arguments.extend(all.then_some(["--include-ignored", "--show-output"]).into_iter().flatten().map(str::to_owned));
    arguments.extend(jobs.map(|jobs| format!("--test-threads={jobs}")));
    arguments
}

async fn build(progress: &Progress) -> anyhow::Result<PathBuf> {
    let step = progress.step("test program");
    let messages = Command::new("cargo")
        .folder(&workspace::root())
        // Of the whole workspace, as the unit tests are: with the features that this package alone asks for, cargo would
        // build most of what both depend on once more.
        .args(["test", "--workspace", "--test", TARGET, "--no-run", "--message-format=json"])
        .run()
        .await?;
    step.done("built");
    executable(&messages).context("cargo named no program for the test target `cluster`")
}

/// The program of the test target in cargo's messages.
fn executable(messages: &str) -> Option<PathBuf> {
    messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|message| {
        let ours = message["reason"] == "compiler-artifact" && message["target"]["name"] == TARGET;
        message["executable"].as_str().filter(|_| ours).map(PathBuf::from)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_in_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"serde"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"quorate-e2e"},"executable":"/t/quorate-e2e"}
{"reason":"compiler-artifact","target":{"name":"cluster"},"executable":"/t/cluster-1a"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages), Some("/t/cluster-1a".into()));
        assert_eq!(executable("not json"), None);
    }

    #[test]
    fn all_includes_the_ignored_and_shows_what_they_measured() {
        let choice = Choice { all: true, jobs: Some(2), no_deploy: false, etcd: None, filter: vec!["seed".into()] };
        assert_eq!(arguments(&choice), ["seed", "--include-ignored", "--show-output", "--test-threads=2"]);
        assert!(!choice.is_every() && Choice { filter: vec![], ..choice }.is_every());
        let choice = Choice { all: false, jobs: None, no_deploy: false, etcd: None, filter: vec![] };
        assert!(arguments(&choice).is_empty() && !choice.is_every());
    }
}
