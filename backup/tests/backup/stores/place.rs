//! How one place in a store is reached: as the agent is told on its command line, and as its library takes it.

use std::collections::BTreeMap;
use std::fs;

use bytes::Bytes;
use futures::TryStreamExt;
use quorate_backup::format::{Chain, generations};
use quorate_backup::keys::KeyFiles;
use quorate_backup::snapshot::{Failure, Report};
use quorate_backup::store::{Address, CredentialsFolder, Listed, Settings, Store};
use serde_json::Value;
use tempfile::TempDir;

use crate::agent::{Ended, command, run};
use crate::fake::Served;

/// A place, and its credentials as a mounted Secret has them.
pub struct Place {
    address: String,
    options: BTreeMap<String, String>,
    credentials: Option<TempDir>,
}

impl Place {
    /// One that needs no more than its address.
    pub fn at(address: String) -> Self {
        Self { address, options: BTreeMap::new(), credentials: None }
    }

    pub fn with_option(mut self, name: &str, value: &str) -> Self {
        self.options.insert(name.to_owned(), value.to_owned());
        self
    }

    /// With a file for each value.
    pub fn with_credentials(mut self, files: &[(&str, &str)]) -> Self {
        self.credentials = Some(tempfile::tempdir().unwrap());
        for (name, value) in files {
            self.renew(name, value);
        }
        self
    }

    /// Writes one of the values anew, as when the Secret is changed.
    pub fn renew(&self, name: &str, value: &str) {
        fs::write(self.credentials.as_ref().unwrap().path().join(name), value).unwrap();
    }

    pub fn address(&self) -> Address {
        self.address.parse().unwrap()
    }

    /// The chain of the only generation there is of `blue`.
    pub async fn only_chain(&self) -> Chain {
        let store = self.open();
        let keys = generations(&store, &"blue".parse().unwrap()).await.unwrap();
        let [key] = &keys[..] else { panic!("{keys:?}") };
        Chain::read(&store, key).await.unwrap()
    }

    pub fn open(&self) -> Store {
        let credentials = self.credentials.as_ref().map(|folder| CredentialsFolder(folder.path().to_owned()));
        Store::open(&Settings {
            address: self.address(),
            options: self.options.clone(),
            credentials,
            ca: None,
            keys: KeyFiles::default(),
        })
        .unwrap()
    }

    /// The agent's arguments that say so.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["--store".to_owned(), self.address.clone()];
        for (name, value) in &self.options {
            arguments.extend(["--store-option".to_owned(), format!("{name}={value}")]);
        }
        if let Some(folder) = &self.credentials {
            arguments.extend(["--store-credentials".to_owned(), folder.path().to_str().unwrap().to_owned()]);
        }
        arguments
    }

    /// Copies the backups of a lineage from here to another place; what the agent tells of each.
    pub fn copy(&self, lineage: &str, to: &Self) -> Value {
        self.try_to_copy(lineage, to).json()
    }

    /// The same, which may fail.
    pub fn try_to_copy(&self, lineage: &str, to: &Self) -> Ended {
        // A target is told in the same words as a store.
        let as_target = |argument: String| {
            argument.strip_prefix("--store").map_or_else(|| argument.clone(), |rest| format!("--target{rest}"))
        };
        let target: Vec<_> = to.arguments().into_iter().map(as_target).collect();
        let more = [&["--lineage", lineage][..], &target.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat();
        self.run("copy", &more)
    }

    /// All that is there, byte for byte.
    pub async fn content(&self) -> BTreeMap<String, Bytes> {
        let store = self.open();
        let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
        let mut content = BTreeMap::new();
        for Listed { key, .. } in listed {
            let object = store.read(&key, u64::MAX).await.unwrap();
            content.insert(key.to_string(), object.unwrap());
        }
        content
    }

    /// Runs a command of the agent on it.
    pub fn run(&self, command: &str, more: &[&str]) -> Ended {
        let arguments = self.command(command, more);
        run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Takes a snapshot of this member.
    pub fn snapshot(&self, member: &Served, more: &[&str]) -> Ended {
        self.run("snapshot", &[&of(member), more].concat())
    }

    /// What a snapshot of this member reports, which fails.
    pub fn failure(&self, member: &Served) -> Failure {
        reported(&self.snapshot(member, &REPORT))
    }

    /// Takes a snapshot in a process with these variables.
    pub fn snapshot_with(&self, variables: &[(&str, &str)], member: &Served) -> Ended {
        self.run_with(variables, "snapshot", &of(member))
    }

    /// What a snapshot in a process with these variables reports, which fails.
    pub fn failure_with(&self, variables: &[(&str, &str)], member: &Served) -> Failure {
        reported(&self.run_with(variables, "snapshot", &[&of(member)[..], &REPORT].concat()))
    }

    /// Runs a command of the agent on it, in a process with these variables.
    pub fn run_with(&self, variables: &[(&str, &str)], name: &str, more: &[&str]) -> Ended {
        let arguments = self.command(name, more);
        let mut command = command(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        let output = command.envs(variables.iter().copied()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        Ended { success: output.status.success(), stdout, stderr, most_rss_anon: 0 }
    }

    fn command(&self, command: &str, more: &[&str]) -> Vec<String> {
        let more = more.iter().map(|argument| (*argument).to_owned());
        [command, "--output", "json"].map(str::to_owned).into_iter().chain(self.arguments()).chain(more).collect()
    }
}

/// A snapshot that fails prints nothing else.
const REPORT: [&str; 2] = ["--report", "/dev/stdout"];

fn of(member: &Served) -> [&str; 4] {
    ["--endpoint", &member.url, "--lineage", "blue"]
}

/// For programs the same as it says for people.
fn reported(ended: &Ended) -> Failure {
    let told: Report = serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {}", ended.stderr));
    let Report::Failed(failure) = told else { panic!("{told:?}") };
    assert!(ended.error().contains(&failure.message), "{}", ended.stderr);
    failure
}
