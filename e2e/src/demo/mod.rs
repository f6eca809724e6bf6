//! The main job, shown step by step with times: a cluster is created, seeds, grows, survives a killed pod, scales to five
//! and back, and still has the key of the start. It does what a user does, by kubectl alone, and prints each command.

mod narrator;
mod picture;

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::command::Command;
use crate::workspace;
use narrator::Narrator;
use picture::Picture;

/// The demo's own namespace.
const NAMESPACE: &str = "demo";
/// The cluster of deploy/samples/three.yaml.
const CLUSTER: &str = "db";
/// The key that is written at the start and read at the end.
const KEY: &str = "greeting";
/// Its value.
const VALUE: &str = "written-at-the-start";
/// How long a step may take before the demo says that it failed.
const PATIENCE: Duration = Duration::from_mins(3);
/// How often the cluster is looked at: often enough to tell what came first.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Plays the demo with this kubectl on a cluster that has the operator.
pub async fn play(kubectl: Command) -> Result<()> {
    let mut demo = Demo { kubectl, narrator: Narrator::new() };
    demo.clear().await?;
    demo.create().await?;
    demo.write().await?;
    demo.kill().await?;
    demo.scale(5).await?;
    demo.scale(3).await?;
    demo.read().await?;
    demo.end().await
}

struct Demo {
    kubectl: Command,
    narrator: Narrator,
}

impl Demo {
    fn call(&self, args: &[&str]) -> Command {
        self.kubectl.clone().args(["--namespace", NAMESPACE]).args(args)
    }

    /// Says the command as the user would type it, runs it, and returns what it printed.
    async fn show(&self, args: &[&str]) -> Result<String> {
        self.narrator.command(NAMESPACE, args);
        Ok(self.call(args).run().await?)
    }

    /// What an earlier demo left goes first.
    async fn clear(&self) -> Result<()> {
        let there = self.kubectl.clone().args(["get", "namespace", NAMESPACE]).succeeds().await;
        if there {
            self.narrator.plain("An earlier demo is still there; it is deleted first.");
            self.kubectl.clone().args(["delete", "namespace", NAMESPACE, "--timeout=180s"]).run().await?;
        }
        self.kubectl.clone().args(["create", "namespace", NAMESPACE]).run().await?;
        Ok(())
    }

    async fn create(&mut self) -> Result<()> {
        self.narrator.step("Create a cluster of three members");
        let sample = workspace::root().join("deploy/samples/three.yaml");
        let sample = sample.to_str().context("the repository's path is not text")?.to_owned();
        self.narrator.command(NAMESPACE, &["apply", "-f", "deploy/samples/three.yaml"]);
        self.call(&["apply", "-f", &sample]).run().await?;
        self.settle(3).await?;
        self.narrator
            .done("Three voters serve. The first was seeded; the others joined as learners and were promoted.");
        Ok(())
    }

    async fn write(&mut self) -> Result<()> {
        self.narrator.step("Write a key, to be found again at the end");
        let member = self.leader().await?;
        let said = self.show(&["exec", &member, "-c", "etcd", "--", "etcdctl", "put", KEY, VALUE]).await?;
        ensure!(said.trim() == "OK", "etcdctl said {said:?}");
        self.narrator.done(&format!("etcd acknowledged {KEY} = {VALUE}."));
        Ok(())
    }

    async fn kill(&mut self) -> Result<()> {
        self.narrator.step("Kill a member's pod, without grace");
        let before = self.look().await?;
        let victim = self.leader().await?;
        self.narrator.plain(&format!("{victim} leads the cluster: the worst one to lose."));
        self.show(&["delete", "pod", &victim, "--force", "--grace-period=0"]).await?;
        let pod = before.pod(&victim).context("the pod has no UID")?.to_owned();
        self.until("the pod to be replaced", |picture| picture.pod(&victim).is_some_and(|now| now != pod)).await?;
        self.settle(3).await?;
        let after = self.look().await?;
        ensure!(after.ids() == before.ids(), "the members are {:?}, and were {:?}", after.ids(), before.ids());
        self.narrator
            .done(&format!("{victim} is back: the same member id, on the same volume. No membership was changed."));
        Ok(())
    }

    async fn scale(&mut self, replicas: usize) -> Result<()> {
        self.narrator.step(&format!("Scale to {replicas}"));
        self.show(&["scale", &format!("etcd/{CLUSTER}"), &format!("--replicas={replicas}")]).await?;
        self.settle(replicas).await?;
        self.narrator.done(&format!("{replicas} voters serve."));
        Ok(())
    }

    async fn read(&mut self) -> Result<()> {
        self.narrator.step("Read the key of the start");
        let member = self.leader().await?;
        let read = ["exec", &member, "-c", "etcd", "--", "etcdctl", "get", KEY, "--print-value-only"];
        let said = self.show(&read).await?;
        ensure!(said.trim() == VALUE, "{KEY} reads {said:?}, not {VALUE:?}");
        self.narrator.done(&format!("{KEY} = {}: nothing was lost.", said.trim()));
        Ok(())
    }

    async fn end(&mut self) -> Result<()> {
        self.narrator.step("What there is now");
        let member = self.leader().await?;
        for args in [
            &["get", "etcd"][..],
            &["get", "pods", "-o", "wide"],
            &["exec", &member, "-c", "etcd", "--", "etcdctl", "member", "list", "-w", "table"],
            &["get", "events", "--field-selector", "involvedObject.kind=EtcdCluster", "-o", EVENT_COLUMNS],
        ] {
            let said = self.show(args).await?;
            self.narrator.table(&said);
        }
        self.narrator.end(NAMESPACE);
        Ok(())
    }

    /// Waits until the cluster is Ready with so many voters, and tells what happens on the way.
    async fn settle(&mut self, voters: usize) -> Result<()> {
        self.until(&format!("{voters} healthy voters"), |picture| picture.is_settled(voters)).await
    }

    async fn until(&mut self, what: &str, there: impl Fn(&Picture) -> bool) -> Result<()> {
        let started = std::time::Instant::now();
        loop {
            let picture = self.look().await?;
            self.narrator.changes(&picture);
            if there(&picture) {
                return Ok(());
            }
            if started.elapsed() > PATIENCE {
                bail!("waited {} s for {what}; the cluster is: {}", PATIENCE.as_secs(), picture.summary());
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    async fn look(&self) -> Result<Picture> {
        Picture::read(&self.call(&["get", "etcd,pods", "-o", "json"]).run().await?)
    }

    async fn leader(&self) -> Result<String> {
        self.look().await?.leader().map(str::to_owned).context("the status names no leader")
    }
}

/// What is worth a look of an event.
const EVENT_COLUMNS: &str = "custom-columns=REASON:.reason,MESSAGE:.message";
