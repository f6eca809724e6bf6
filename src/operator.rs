//! The operator as a whole: what is started, in which order, and how it ends. No cluster is looked at here.

use std::sync::Arc;

use futures::future::{join_all, select_all};
use kube::Client;
use kube::runtime::events::Reporter;
use quorate_crds::names::FIELD_MANAGER;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::api::{self, Kube};
use crate::backup::controller as backups;
use crate::cli::Settings;
use crate::cluster::controller::{self, Setup};
use crate::events::Teller;
use crate::lease::Election;
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
    let namespaces: Vec<Option<String>> = match settings.namespaces.as_slice() {
        [] => vec![None],
        some => some.iter().cloned().map(Some).collect(),
    };
    let lists: Arc<[_]> = namespaces.iter().cloned().map(controller::lists).map(Arc::new).collect();
    let listener = serve::listen(settings.listen).await?;
    let (hinder, hindrance) = watch::channel(None);
    let until_stopped = turned(stopping.clone());
    let server = tokio::spawn(serve::serve(listener, metrics.clone(), lists.clone(), hindrance, until_stopped));

    let client = client.await?;
    let mut told = std::pin::pin!(told);
    tokio::select! {
        ensured = Box::pin(definitions::ensure_in_the_end(&client, &hinder)) => ensured?,
        () = &mut told => {
            tracing::info!("stops before it has begun");
            stop.send_replace(true);
            let _ = server.await;
            return Ok(());
        }
    }
    let Settings { lease_namespace, lease_name, identity, .. } = &settings;
    let (election, claim) = Election::new(client.clone(), lease_namespace, lease_name, identity, metrics.clone());
    let writes = Writes::new(claim.clone(), stopping.clone(), settings.crash_after_writes);
    let kube = Kube::new(client, metrics.clone(), writes);

    let of_backups = namespaces.clone().into_iter().map(|namespace| {
        let reporter = Reporter { controller: FIELD_MANAGER.into(), instance: Some(settings.identity.clone()) };
        let teller = Teller::new(kube.client(), reporter);
        let driver = backups::Driver {
            kube: kube.clone(),
            teller,
            metrics: metrics.clone(),
            agent_image: settings.agent_image.clone(),
        };
        backups::run(driver, claim.clone(), namespace, stopping.clone())
    });
    let of_backups = join_all(of_backups.collect::<Vec<_>>());
    let controllers = namespaces.into_iter().zip(lists.iter()).map(|(namespace, lists)| {
        let setup = Setup {
            kube: kube.clone(),
            claim: claim.clone(),
            metrics: metrics.clone(),
            agent_image: settings.agent_image.clone(),
            domain: settings.cluster_domain.clone(),
            identity: settings.identity.clone(),
            concurrency: settings.concurrency,
        };
        controller::run(setup, namespace, lists.clone(), stopping.clone())
    });
    let controllers = join_all(controllers.collect::<Vec<_>>());

    // The Lease is handed back only after the last round has ended.
    let (over, ended) = watch::channel(false);
    let election = tokio::spawn(async move {
        // Whoever can drive no cluster, for want of a permission perhaps, leaves the lead to those who can. A namespace that
        // is gone must not cost the others their operator.
        tokio::select! {
            _ = select_all(lists.iter().map(|lists| Box::pin(lists.filled()))) => (),
            () = turned(ended.clone()) => return,
        }
        election.run(turned(ended)).await;
    });
    let mut work = std::pin::pin!(async { tokio::join!(controllers, of_backups) });
    tokio::select! {
        _ = &mut work => (),
        () = &mut told => (),
    }
    tracing::info!("stops");
    stop.send_replace(true);
    work.await;
    over.send_replace(true);
    let _ = election.await;
    let _ = server.await;
    Ok(())
}

fn listen_for(kind: SignalKind) -> Result<Signal, Error> {
    signal(kind).map_err(Error::Signal)
}

#[cfg(test)]
mod stop_tests;
