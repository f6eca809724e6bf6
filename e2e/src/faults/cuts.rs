//! Cuts between two pods that last while a scene's body runs, and are taken back however that ends.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};

use crate::lab::{Lab, NodeNumber};
use crate::scene::{Cluster, View};

/// Where a pod can be reached.
struct Place {
    node: NodeNumber,
    address: Ipv4Addr,
}

impl Place {
    fn of(lab: &Lab, view: &View, pod: &str) -> Result<Self> {
        let node = lab.node_named(view.node(pod).with_context(|| format!("{pod} has no node"))?)?.number();
        let address = view.address(pod).with_context(|| format!("{pod} has no address"))?;
        let address = address.parse().with_context(|| format!("{address} is no address of the local cluster"))?;
        Ok(Self { node, address })
    }
}

/// Runs `body` while nothing that either of two pods sends to the other arrives; everybody else reaches both.
pub async fn between_during<T>(
    cluster: &Cluster,
    (one, other): (&str, &str),
    body: impl AsyncFnOnce() -> Result<T>,
) -> Result<T> {
    let lab = Lab::from_env().context("cuts between pods need the local cluster")?;
    let view = cluster.view().await?;
    let (one, other) = (Place::of(&lab, &view, one)?, Place::of(&lab, &view, other)?);
    let cut = async {
        lab.cut_way(one.node, other.address, one.address).await?;
        lab.cut_way(other.node, one.address, other.address).await
    };
    let outcome = match cut.await {
        Ok(()) => body().await,
        Err(error) => Err(error.into()),
    };
    let healed = [
        lab.heal_way(one.node, other.address, one.address).await,
        lab.heal_way(other.node, one.address, other.address).await,
    ];
    // What went wrong in the scene counts for more than what goes wrong here.
    let outcome = outcome?;
    for heal in healed {
        heal.context("failed to take a cut back")?;
    }
    Ok(outcome)
}
