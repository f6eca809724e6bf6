//! The operator as a whole: what is started, in which order, and how it ends. No cluster is looked at here.

use std::sync::Arc;

use futures::future::{join_all, select_all};
use kube::Client;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::api::{self, Kube};
use crate::backup::controller as backups;
use crate::cli::Settings;
use crate::cluster::controller::{self, Setup};
use crate::events::Teller;
use crate::lease::{Claim, Election};
use crate::lists::Lists;
use crate::metrics::Metrics;
use crate::stop::turned;
use crate::writes::Writes;
use crate::{definitions, serve};

/// Why the operator can't run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Kubernetes can't be reached.
    #[error(transparent)]
    Client(#[from] api::ClientError),
    /// The definition is missing or too old.
    #[error(transparent)]
    Definition(#[from] definitions::Error),
    /// Nothing can be served.
    #[error(transparent)]
    Serve(#[from] serve::Error),
    /// Signals can't be waited for.
    #[error("failed to wait for signals")]
    Signal(#[source] std::io::Error),
}

/// Runs the operator until a signal tells it to stop.
pub async fn run(settings: Settings) -> Result<(), Error> {
    let (mut terminate, mut interrupt) = (listen_for(SignalKind::terminate())?, listen_for(SignalKind::interrupt())?);
    let told = async move {
        tokio::select! {
            _ = terminate.recv() => (),
            _ = interrupt.recv() => (),
        }
    };
    operate(settings, api::client(), told).await
}

/// Runs the operator until `told` resolves, on the Kubernetes that `client` brings.
async fn operate(
    settings: Settings,
    client: impl Future<Output = Result<Client, api::ClientError>>,
    told: impl Future<Output = ()>,
) -> Result<(), Error> {
    let metrics = Arc::new(Metrics::new());
    let (stop, stopping) = watch::channel(false);
    let lists: Arc<[_]> = namespaces(&settings).map(controller::lists).map(Arc::new).collect();
    let listener = serve::listen(settings.listen).await?;
    let (hinder, hindrance) = watch::channel(None);
    let server = serve::serve(listener, metrics.clone(), lists.clone(), hindrance, turned(stopping.clone()));
    let server = tokio::spawn(server);

    let client = client.await?;
    let mut told = std::pin::pin!(told);
    let begins = tokio::select! {
        ensured = Box::pin(definitions::ensure_in_the_end(&client, &hinder)) => ensured.map(|()| true)?,
        () = &mut told => false,
    };
    if begins {
        Box::pin(take_part(&settings, client, lists, metrics, &stop, told)).await;
    } else {
        tracing::info!("stops before it has begun");
    }
    stop.send_replace(true);
    let _ = server.await;
    Ok(())
}

/// Joins the election, and drives clusters and backups while it leads, until `told` resolves. The Lease is handed back only
/// after the last round has ended, and a moment for what it had to tell.
async fn take_part(
    settings: &Settings,
    client: Client,
    lists: Arc<[Arc<Lists>]>,
    metrics: Arc<Metrics>,
    stop: &watch::Sender<bool>,
    told: impl Future<Output = ()>,
) {
    let Settings { lease_namespace, lease_name, identity, .. } = settings;
    let (election, claim) = Election::new(client.clone(), lease_namespace, lease_name, identity, metrics.clone());
    let writes = Writes::new(claim.clone(), stop.subscribe(), settings.crash_after_writes);
    let kube = Kube::new(client, metrics.clone(), writes);
    let teller = Teller::new(kube.client(), identity);
    let (over, ended) = watch::channel(false);
    let election = tokio::spawn(compete(election, lists.clone(), ended));
    let drivers = Drivers { settings, kube, claim, metrics, teller: teller.clone() };
    let mut work = std::pin::pin!(drivers.work(&lists, stop));
    tokio::select! {
        () = &mut work => (),
        () = told => {
            tracing::info!("stops");
            stop.send_replace(true);
            work.await;
        }
    }
    teller.finish().await;
    over.send_replace(true);
    let _ = election.await;
}

/// Takes part in the election until the work has `ended`.
async fn compete(election: Election, lists: Arc<[Arc<Lists>]>, ended: watch::Receiver<bool>) {
    // Whoever can drive no cluster, for want of a permission perhaps, leaves the lead to those who can. A namespace that
    // is gone must not cost the others their operator.
    tokio::select! {
        _ = select_all(lists.iter().map(|lists| Box::pin(lists.filled()))) => (),
        () = turned(ended.clone()) => return,
    }
    election.run(turned(ended)).await;
}

/// The namespaces to look after; `None` is all of them.
fn namespaces(settings: &Settings) -> impl Iterator<Item = Option<String>> {
    let all = settings.namespaces.is_empty().then_some(None);
    all.into_iter().chain(settings.namespaces.iter().cloned().map(Some))
}

/// What those who drive share.
struct Drivers<'a> {
    settings: &'a Settings,
    kube: Kube,
    claim: Claim,
    metrics: Arc<Metrics>,
    teller: Teller,
}

impl Drivers<'_> {
    /// Drives the clusters and the backups of each namespace until `stop` turns true, and the last round has ended.
    async fn work(&self, lists: &[Arc<Lists>], stop: &watch::Sender<bool>) {
        let controllers = namespaces(self.settings)
            .zip(lists)
            .map(|(namespace, lists)| controller::run(self.of_clusters(), namespace, lists.clone(), stop.subscribe()));
        let of_backups = namespaces(self.settings)
            .map(|namespace| backups::run(self.of_backups(), self.claim.clone(), namespace, stop.subscribe()));
        tokio::join!(join_all(controllers), join_all(of_backups));
    }

    fn of_clusters(&self) -> Setup {
        Setup {
            kube: self.kube.clone(),
            claim: self.claim.clone(),
            metrics: self.metrics.clone(),
            agent_image: self.settings.agent_image.clone(),
            domain: self.settings.cluster_domain.clone(),
            teller: self.teller.clone(),
            concurrency: self.settings.concurrency,
        }
    }

    fn of_backups(&self) -> backups::Driver {
        backups::Driver {
            kube: self.kube.clone(),
            teller: self.teller.clone(),
            metrics: self.metrics.clone(),
            agent_image: self.settings.agent_image.clone(),
        }
    }
}

fn listen_for(kind: SignalKind) -> Result<Signal, Error> {
    signal(kind).map_err(Error::Signal)
}

#[cfg(test)]
mod stop_tests;
