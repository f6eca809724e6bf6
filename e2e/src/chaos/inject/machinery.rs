//! Faults of what the cluster runs on: nodes, the operator, the API server.

use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use rustix::process::Signal;

use super::{Carried, Injector, tried};
use crate::chaos::cuts::Cut;
use crate::chaos::fault::Way;
use crate::faults::processes;
use crate::lab::{LabError, Place};

/// The operator's program.
const OPERATOR_PROGRAM: &str = "quorate";

impl Injector {
    pub(super) async fn cut_node(&self, number: u8, span: Duration) -> Result<Carried> {
        let node = self.lab.node(number)?;
        self.goes_away(&node.name());
        let cut = Cut::Node(node.name());
        self.looks.cuts().begin(cut.clone());
        let heal = async || {
            node.heal().await?;
            self.looks.cuts().end(&cut);
            self.is_back(&node.name());
            Ok::<(), LabError>(())
        };
        during(span, node.cut(), heal).await?;
        Ok(Carried::Done(node.name()))
    }

    pub(super) async fn cut_node_from_api(&self, number: u8, span: Duration) -> Result<Carried> {
        let node = self.lab.node(number)?;
        self.goes_away(&node.name());
        let heal = async || {
            self.lab.heal_between(node.number(), Place::ControlPlane).await?;
            self.is_back(&node.name());
            Ok::<(), LabError>(())
        };
        during(span, self.lab.cut_between(node.number(), Place::ControlPlane), heal).await?;
        Ok(Carried::Done(node.name()))
    }

    pub(super) async fn stop_node(&self, number: u8, span: Duration) -> Result<Carried> {
        let node = self.lab.node(number)?;
        self.goes_away(&node.name());
        let start = async || {
            node.start().await?;
            self.is_back(&node.name());
            Ok::<(), LabError>(())
        };
        during(span, node.stop(), start).await?;
        Ok(Carried::Done(node.name()))
    }

    pub(super) async fn kill_operators(&self, all: bool) -> Result<Carried> {
        if all {
            tried(async || self.operator.delete_pods().await).await?;
            return Ok(Carried::Done("all".into()));
        }
        let (name, pid) = self.leading_operator().await?;
        processes::signal(pid, Signal::KILL)?;
        Ok(Carried::Done(name))
    }

    pub(super) async fn pause_operator(&self, span: Duration) -> Result<Carried> {
        let (name, pid) = self.leading_operator().await?;
        processes::signal(pid, Signal::STOP)?;
        tokio::time::sleep(span).await;
        // The kubelet may have ended it meanwhile, since it did not answer.
        if processes::signal(pid, Signal::CONT).is_err() {
            tracing::debug!(%name, "the paused operator has ended");
        }
        Ok(Carried::Done(name))
    }

    pub(super) async fn cut_operator(&self, span: Duration) -> Result<Carried> {
        let pod = tried(async || self.operator.leader().await).await?;
        let (spec, status) = (pod.spec.unwrap_or_default(), pod.status.unwrap_or_default());
        let node = spec.node_name.context("the operator has no node")?;
        let address = status.pod_ip.context("the operator has no address")?;
        self.cut_pod(&node, &address, Way::Both, span).await?;
        Ok(Carried::Done(pod.metadata.name.unwrap_or_default()))
    }

    /// The operator that leads: its pod's name and its process.
    async fn leading_operator(&self) -> Result<(String, i32)> {
        tried(async || {
            let Pod { metadata, .. } = self.operator.leader().await?;
            let uid = metadata.uid.context("a pod without a UID")?;
            let process = processes::in_pod(&uid, OPERATOR_PROGRAM).first().copied();
            Ok((metadata.name.unwrap_or_default(), process.context("the leading operator does not run")?))
        })
        .await
    }

    pub(super) async fn stop_api(&self, span: Duration) -> Result<Carried> {
        during(span, self.lab.stop_apiserver(), async || self.lab.start_apiserver().await).await?;
        Ok(Carried::Done("kube-apiserver".into()))
    }

    pub(super) async fn pause_api(&self, span: Duration) -> Result<Carried> {
        self.lab.freeze_apiserver();
        tokio::time::sleep(span).await;
        self.lab.thaw_apiserver();
        Ok(Carried::Done("kube-apiserver".into()))
    }
}

/// Does something, and takes it back after a while, also if only a part of it could be done: nobody else would, before all
/// faults are over. What can't be taken back is tried once more.
pub(super) async fn during(
    span: Duration,
    act: impl Future<Output = Result<(), LabError>>,
    back: impl AsyncFn() -> Result<(), LabError>,
) -> Result<()> {
    let acted = act.await;
    if acted.is_ok() {
        tokio::time::sleep(span).await;
    }
    if let Err(error) = back().await {
        tracing::warn!(error = &error as &dyn std::error::Error, "failed to take a fault back; it is tried once more");
        back().await?;
    }
    Ok(acted?)
}
