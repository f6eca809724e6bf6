//! Every call to Kubernetes but the watches and the Lease: each with a deadline, each counted, writes only through the
//! gate. It decides nothing and retries nothing: the next round observes again.

use std::borrow::Cow;
use std::fmt::Debug;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, Config, Resource};
use quorate_crds::names::FIELD_MANAGER;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::events::quoted;
use crate::metrics::Metrics;
use crate::writes::{self, Writes};

/// How long one call may take. kube's own default is no limit at all. Five seconds is the time by which a Lease
/// outlives its holder's right to write: see [`crate::lease`].
pub const DEADLINE: Duration = Duration::from_secs(5);

/// How long Kubernetes may say nothing on a connection on which it was asked something. That is the deadline of lists and of
/// watches, which kube makes for itself; a call of ours has ended long before.
const SILENCE: Duration = Duration::from_mins(1);

/// How long a watch lasts until it is asked for anew, in seconds: nothing need happen meanwhile, so less than [`SILENCE`].
pub const WATCH_SECONDS: u32 = 50;

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[error("failed to {verb} {kind} {name}")]
pub struct Error {
    verb: &'static str,
    kind: Cow<'static, str>,
    name: String,
    /// Why.
    #[source]
    pub cause: Cause,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// Nothing was sent: the Lease is another's, or the operator is being stopped.
    #[error("{0}")]
    Shut(&'static str),
    /// No answer in time: a write may have been done or not.
    #[error("no answer within {0:?}")]
    Deadline(Duration),
    /// The API server's answer, or why there is none.
    #[error(transparent)]
    Kube(Box<kube::Error>),
}

/// Whether it failed before there was a connection to ask on.
fn is_without_connection(error: &(dyn std::error::Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut kinds = causes.filter_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    kinds.any(|kind| {
        matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable)
    })
}

impl Error {
    /// The API server's answer, if there is one.
    fn status(&self) -> Option<&kube::core::Status> {
        match &self.cause {
            Cause::Kube(error) => match error.as_ref() {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            Cause::Shut(_) | Cause::Deadline(_) => None,
        }
    }

    /// Somebody else was faster: the object has changed, is gone, is there already, or is another one by now. The next round
    /// sees it.
    pub fn is_surprise(&self) -> bool {
        self.status().is_some_and(|s| s.is_not_found() || is_conflict(s))
    }

    /// The caller lacks the right.
    pub fn is_forbidden(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_forbidden)
    }

    /// The object is gone.
    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_not_found)
    }

    /// Nothing can be created there any more: the namespace is being deleted.
    pub fn is_of_a_namespace_that_goes(&self) -> bool {
        let details = self.status().and_then(|status| status.details.as_ref());
        details.is_some_and(|details| details.causes.iter().any(|cause| cause.reason == "NamespaceTerminating"))
    }

    /// The API server refused the object itself (an admission policy, a quota, a field): its words.
    pub fn refusal(&self) -> Option<&str> {
        let refused = |s: &&kube::core::Status| s.is_forbidden() || s.is_invalid() || s.code == 400;
        self.status().filter(refused).filter(|s| !is_conflict(s)).map(|s| s.message.as_str())
    }

    /// The same for people, with what was asked for: no more than a condition takes.
    pub fn told_refusal(&self) -> Option<String> {
        self.refusal().map(|words| format!("{self}: {}", quoted(words)))
    }

    /// The API server does not do this, or not with this object: it has no such subresource, or finds fault with the
    /// change. A right or a quota that is lacking is something else, and so is an object that has changed.
    pub fn is_not_done_here(&self) -> bool {
        let not_done = |s: &kube::core::Status| s.is_not_found() || s.is_invalid() || s.code == 400 || s.code == 405;
        self.status().is_some_and(|s| not_done(s) && !is_conflict(s))
    }

    /// What was asked for may have been done all the same: no answer came, or one that says that Kubernetes' own etcd did not
    /// answer in time. Where no connection came about nothing was asked for, and a webhook is called before anything is stored.
    pub fn is_unanswered(&self) -> bool {
        match &self.cause {
            Cause::Shut(_) => false,
            Cause::Deadline(_) => true,
            Cause::Kube(error) => match error.as_ref() {
                kube::Error::Api(status) => match status.code {
                    502 | 504 => true,
                    500 => !failed_at_a_webhook(status),
                    _ => false,
                },
                error => !is_without_connection(error),
            },
        }
    }

    /// A webhook that was to be asked first did not answer, so nothing was stored.
    pub fn is_of_a_webhook(&self) -> bool {
        self.status().is_some_and(failed_at_a_webhook)
    }

    /// Nothing was sent.
    pub fn is_shut(&self) -> bool {
        matches!(self.cause, Cause::Shut(_))
    }
}

/// Whether a webhook failed (`ToStatusErr` and `NewInternalError` in apiserver's `pkg/admission/plugin/webhook`).
fn failed_at_a_webhook(status: &kube::core::Status) -> bool {
    status.code == 500 && status.message.contains("webhook")
}

/// Whether the object is not the one that was meant. To a patch with the UID of another one the API server answers that this
/// field can't be changed (`ValidateObjectMetaAccessorUpdate` in apimachinery's `pkg/api/validation/objectmeta.go`).
fn is_conflict(status: &kube::core::Status) -> bool {
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    let is_another = status.is_invalid() && causes.any(|cause| cause.field == "metadata.uid");
    is_another || status.is_conflict() || status.is_already_exists()
}

/// A kind of which each object lives in a namespace.
pub trait Namespaced: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Known {}
impl<K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Known> Namespaced for K {}

/// A kind whose objects can be read and written.
pub trait Known: Clone + Debug + Serialize + DeserializeOwned {}
impl<K: Clone + Debug + Serialize + DeserializeOwned> Known for K {}

/// The Kubernetes API.
#[derive(Clone)]
pub struct Kube {
    client: Client,
    metrics: Arc<Metrics>,
    writes: Writes,
}

/// A client from the environment: the kubeconfig outside, the ServiceAccount inside a cluster. kube's own retries (up
/// to 15, minutes long) are off: a round fails and the next one observes again.
pub async fn client() -> Result<Client, ClientError> {
    Ok(client_of(Config::infer().await?, SILENCE)?)
}

fn client_of(mut config: Config, silence: Duration) -> Result<Client, kube::Error> {
    config.default_retry = false;
    config.read_timeout = Some(silence);
    // A connection that was idle is not silent.
    config.reset_reader_on_write = true;
    Client::try_from(config)
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Neither a kubeconfig nor a ServiceAccount.
    #[error("failed to find out how to reach Kubernetes: set KUBECONFIG, or run in a pod with a ServiceAccount")]
    Infer(#[from] kube::config::InferConfigError),
    /// The configuration is unusable.
    #[error("failed to make a client of the Kubernetes configuration")]
    Client(#[from] kube::Error),
}

impl Kube {
    /// The API behind this client.
    pub fn new(client: Client, metrics: Arc<Metrics>, writes: Writes) -> Self {
        Self { client, metrics, writes }
    }

    /// The client itself, for watches and events.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The gate through which writes go.
    pub fn writes(&self) -> &Writes {
        &self.writes
    }

    /// Reads one object by a quorum read; `None` if it isn't there.
    pub async fn get<K: Namespaced>(&self, namespace: &str, name: &str) -> Result<Option<K>, Error> {
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        self.read::<K, _>("get", name, api.get_opt(name)).await
    }

    /// Whether an object is there, by a quorum read of its metadata alone: what it holds is not sent.
    pub async fn exists<K: Namespaced>(&self, namespace: &str, name: &str) -> Result<bool, Error> {
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        Ok(self.read::<K, _>("get", name, api.get_metadata_opt(name)).await?.is_some())
    }

    /// Reads one object by a quorum read as [`Self::get`] does, of a kind that this operator may list and not get.
    pub async fn find<K: Namespaced>(&self, namespace: &str, name: &str) -> Result<Option<K>, Error> {
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        let params = ListParams::default().fields(&format!("metadata.name={name}"));
        Ok(self.read::<K, _>("list", name, api.list(&params)).await?.items.pop())
    }

    /// Reads one object that lives in no namespace by a quorum read; `None` if it isn't there.
    pub async fn get_global<K>(&self, name: &str) -> Result<Option<K>, Error>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Known,
    {
        let api = Api::<K>::all(self.client.clone());
        self.read::<K, _>("get", name, api.get_opt(name)).await
    }

    /// Lists the objects with these labels by a quorum read: without a resourceVersion the API server answers from
    /// etcd's newest state.
    pub async fn list<K: Namespaced>(&self, namespace: &str, labels: &str) -> Result<Vec<K>, Error> {
        self.list_by(namespace, labels, ListParams::default()).await
    }

    /// Lists the objects with these labels as the API server remembers them, perhaps from a moment ago: it asks nobody for
    /// that.
    pub async fn list_cached<K: Namespaced>(&self, namespace: &str, labels: &str) -> Result<Vec<K>, Error> {
        self.list_by(namespace, labels, ListParams::default().match_any()).await
    }

    async fn list_by<K: Namespaced>(&self, namespace: &str, labels: &str, params: ListParams) -> Result<Vec<K>, Error> {
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        let params = params.labels(labels);
        Ok(self.read::<K, _>("list", labels, api.list(&params)).await?.items)
    }

    /// Creates an object. A taken name is an error.
    pub async fn create<K: Namespaced>(&self, namespace: &str, object: &K) -> Result<K, Error> {
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        let name = object.meta().name.clone().unwrap_or_default();
        let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
        self.write::<K, _>("create", &name, api.create(&params, object)).await
    }

    /// Applies an object server-side: our fields become as given, others' stay. With a `metadata.uid` it is refused if the
    /// object is another one, or gone.
    pub async fn apply<K: Namespaced>(&self, namespace: &str, object: &K) -> Result<K, Error> {
        self.apply_by(&PatchParams::apply(FIELD_MANAGER).force(), namespace, object).await
    }

    /// Applies an object server-side that is not there yet. What somebody else has made under its name meanwhile is not
    /// overwritten: that is a conflict.
    pub async fn apply_anew<K: Namespaced>(&self, namespace: &str, object: &K) -> Result<K, Error> {
        self.apply_by(&PatchParams::apply(FIELD_MANAGER), namespace, object).await
    }

    async fn apply_by<K: Namespaced>(&self, params: &PatchParams, namespace: &str, object: &K) -> Result<K, Error> {
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        let name = object.meta().name.clone().unwrap_or_default();
        self.write::<K, _>("apply", &name, api.patch(&name, params, &Patch::Apply(object))).await
    }

    /// Merges into an object. A `metadata.uid` or `metadata.resourceVersion` in `change` that differs from the object's
    /// is refused by the API server, which is a surprise: that is how a patch is guarded.
    pub async fn merge<K: Namespaced>(
        &self,
        namespace: &str,
        name: &str,
        change: &serde_json::Value,
    ) -> Result<K, Error> {
        self.change(namespace, name, &Patch::Merge(change)).await
    }

    /// Patches an object as its kind's lists are keyed: of a list's items, those that are named change, others stay. Guarded
    /// as [`Self::merge`] is.
    pub async fn patch<K: Namespaced>(
        &self,
        namespace: &str,
        name: &str,
        change: &serde_json::Value,
    ) -> Result<K, Error> {
        self.change(namespace, name, &Patch::Strategic(change)).await
    }

    async fn change<K: Namespaced>(
        &self,
        namespace: &str,
        name: &str,
        patch: &Patch<&serde_json::Value>,
    ) -> Result<K, Error> {
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        self.write::<K, _>("patch", name, api.patch(name, &as_ourselves(), patch)).await
    }

    /// Patches a subresource in the same way.
    pub async fn patch_part<K: Namespaced>(
        &self,
        part: &'static str,
        namespace: &str,
        name: &str,
        change: &serde_json::Value,
    ) -> Result<K, Error> {
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        let patch = Patch::Strategic(change);
        self.write::<K, _>(part, name, api.patch_subresource(part, name, &as_ourselves(), &patch)).await
    }

    /// Replaces the status of an object if it still has the resourceVersion that it was read with.
    pub async fn replace_status<K: Namespaced>(&self, namespace: &str, object: &K) -> Result<K, Error> {
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        let name = object.meta().name.clone().unwrap_or_default();
        let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
        self.write::<K, _>("replace-status", &name, api.replace_status(&name, &params, object)).await
    }

    /// Deletes an object with its own grace period, if it is still this one. An object that is gone is an error.
    pub async fn delete<K: Namespaced>(&self, namespace: &str, name: &str, still: Preconditions) -> Result<(), Error> {
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        let params = DeleteParams::default().preconditions(still);
        self.write::<K, _>("delete", name, api.delete(name, &params)).await.map(drop)
    }

    async fn read<K: Resource<DynamicType = ()>, T>(
        &self,
        verb: &'static str,
        name: &str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Error> {
        let answer = match timeout(DEADLINE, call).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(Cause::Kube(Box::new(error))),
            Err(_) => Err(Cause::Deadline(DEADLINE)),
        };
        self.counted::<K, T>(verb, name, answer)
    }

    async fn write<K: Resource<DynamicType = ()>, T>(
        &self,
        verb: &'static str,
        name: &str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Error> {
        let answer = self.writes.perform(DEADLINE, call).await.map_err(|error| match error {
            writes::Error::NotLeading => Cause::Shut("this operator does not lead"),
            writes::Error::Stopping => Cause::Shut("this operator is being stopped"),
            writes::Error::Deadline(deadline) => Cause::Deadline(deadline),
            writes::Error::Failed(error) => Cause::Kube(Box::new(error)),
        });
        self.counted::<K, T>(verb, name, answer)
    }

    fn counted<K: Resource<DynamicType = ()>, T>(
        &self,
        verb: &'static str,
        name: &str,
        answer: Result<T, Cause>,
    ) -> Result<T, Error> {
        let kind = K::kind(&());
        let outcome = match &answer {
            Ok(_) => "ok",
            Err(Cause::Shut(_)) => "shut",
            Err(Cause::Deadline(_)) => "deadline",
            Err(Cause::Kube(error)) => match error.as_ref() {
                kube::Error::Api(status) if is_conflict(status) => "conflict",
                kube::Error::Api(status) if status.is_not_found() => "not-found",
                _ => "error",
            },
        };
        self.metrics.called("kubernetes", verb, &kind, outcome);
        answer.map_err(|cause| Error { verb, kind: kind.into_owned().into(), name: name.to_owned(), cause })
    }
}

/// A patch says whose it is.
fn as_ourselves() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() }
}

#[cfg(test)]
#[path = "api_tests.rs"]
mod tests;
