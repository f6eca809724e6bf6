//! Steps that change what a pod is while it is there, or try what it is to become: its image with its ticket, its compute
//! resources, a trial on its node, a snapshot before it. None of them deletes a member's pod.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::Preconditions;
use quorate_crds::{EtcdBackup, Reason, names};
use quorate_statemachine::{Minor, NodeName, Release, Serial, Step, Ticket, Uid};
use serde_json::{Value, json};

use super::taken::whose_child;
use super::{Acting, Stop};
use crate::cluster::observe::snapshots::SnapshotFacts;
use crate::cluster::render::{self, ETCD_CONTAINER};
use crate::ownership::is_owned;

impl Acting<'_> {
    /// Tells a pod to run another image, and with it the version that its ticket demands: in one write, so that no
    /// container is ever started with one and not the other. The kubelet stops the container and starts it anew.
    pub(super) async fn switch_release(
        &self,
        step: &Step,
        serial: Serial,
        uid: &Uid,
        release: &Release,
        ticket: Option<&Ticket>,
    ) -> Result<(), Stop> {
        self.object_is_untouched().await?;
        self.others_still_serve(serial).await?;
        let observed = self.pod(serial, uid)?;
        let other_image = observed.release.as_ref().is_none_or(|told| told.image != release.image);
        // The kubelet leaves a container alone whose image is called the same; then nobody is to wait for its end.
        let switched_from = observed.container.as_ref().filter(|_| other_image).map(|container| &*container.id);
        let mut annotations =
            serde_json::Map::from_iter([(names::ANNOTATION_SWITCHED_FROM.to_owned(), json!(switched_from))]);
        annotations.extend(render::told(release).map(|(name, value)| (name.to_owned(), Value::String(value))));
        if let Some(ticket) = ticket {
            let sealed = self.seal_planned(serial, ticket)?;
            annotations.extend(sealed.annotations().into_iter().map(|(name, value)| (name, Value::String(value))));
        }
        let change = json!({
            "metadata": { "uid": uid.as_str(), "resourceVersion": observed.resource_version,
                "annotations": annotations },
            "spec": { "containers": [{ "name": ETCD_CONTAINER, "image": release.image.as_str() }] },
        });
        self.asks(step);
        self.actor.kube.patch::<Pod>(self.cluster.namespace, &self.cluster.member(serial), &change).await?;
        Ok(())
    }

    /// Gives a pod the wished compute resources while it runs. Where Kubernetes does not do that, as before 1.33 or where
    /// the pod would change its class of service, that is noted on the pod.
    pub(super) async fn resize_pod(&self, serial: Serial, uid: &Uid) -> Result<(), Stop> {
        let observed = self.pod(serial, uid)?;
        let (namespace, name) = (self.cluster.namespace, self.cluster.member(serial));
        let resources = &self.cluster.spec.resources;
        let wished = json!({ "$patch": "replace", "requests": resources.requests, "limits": resources.limits });
        let change = json!({
            "metadata": { "uid": uid.as_str(), "resourceVersion": observed.resource_version },
            "spec": { "containers": [{ "name": ETCD_CONTAINER, "resources": wished }] },
        });
        let hash = render::write_hash(render::resources_hash(self.cluster.spec));
        let (given, refused) = match self.actor.kube.patch_part::<Pod>("resize", namespace, &name, &change).await {
            Ok(_) => (Some(hash), None),
            Err(error) if error.is_not_done_here() => {
                tracing::info!(pod = name, error = %error.cause, "is not resized while it runs");
                (None, Some(hash))
            }
            Err(error) => return Err(error.into()),
        };
        let mut annotations =
            serde_json::Map::from_iter([(names::ANNOTATION_RESIZE_REFUSED.to_owned(), json!(refused))]);
        annotations.extend(given.map(|hash| (names::ANNOTATION_RESOURCES.to_owned(), json!(hash))));
        let noted = json!({ "uid": uid.as_str(), "annotations": annotations });
        Ok(self.change_metadata(serial, &noted).await?)
    }

    /// Orders the snapshot before the members go to this minor.
    pub(super) async fn take_snapshot(&self, to: Minor) -> Result<(), Stop> {
        let generation = self.observed.cluster.metadata.generation.unwrap_or_default();
        let Some(snapshot) = render::snapshot(&self.cluster, to, generation) else {
            return Err(Stop::Surprise("there is no store for a snapshot".into()));
        };
        let (kube, namespace) = (&self.actor.kube, self.cluster.namespace);
        let Err(error) = kube.create(namespace, &snapshot).await else { return Ok(()) };
        let name = snapshot.name_any();
        let there = if error.is_surprise() { kube.get::<EtcdBackup>(namespace, &name).await? } else { None };
        let Some(there) = there else { return Err(error.into()) };
        if is_owned(&there, &*self.observed.cluster) && SnapshotFacts::of(&there).is_some() {
            return Err(Stop::Surprise(format!("EtcdBackup {name} is there and was not shown yet")));
        }
        let sentence = format!(
            "There is an EtcdBackup {name} that is not this cluster's own: delete it, for a snapshot to be taken."
        );
        Err(Stop::Refused(Reason::SnapshotFailed, sentence))
    }

    /// Makes the pod of a trial. An image that members run already under that very name can't be switched to: the kubelet
    /// would not restart them.
    pub(super) async fn try_release(&self, serial: Serial, node: &NodeName, release: &Release) -> Result<(), Stop> {
        let told = self.observed.pods.get(&serial).and_then(|pod| pod.release.as_ref());
        if told.is_some_and(|told| told.image == release.image && told.version != release.version) {
            let sentence = format!(
                "{} runs image {} as etcd {} already: give version {} a tag of its own in spec.image.tag.",
                self.cluster.member(serial),
                release.image.as_str(),
                told.map(|told| told.version).unwrap_or_default(),
                release.version,
            );
            return Err(Stop::Refused(Reason::SpecInvalid, sentence));
        }
        let agent = (&self.actor.agent, self.observed.delivery);
        let pod = render::trial(&self.cluster, serial, node, release, agent)?;
        self.create_or_tell(&pod, whose_child).await?;
        Ok(())
    }

    /// Deletes the pod of a trial.
    pub(super) async fn end_trial(&self, serial: Serial, uid: &Uid) -> Result<(), Stop> {
        let mut trials = self.observed.trials.iter();
        let Some((_, trial)) = trials.find(|(of, trial)| *of == serial && trial.uid == *uid) else {
            return Err(Stop::Surprise(format!("the trial for {serial} is another one")));
        };
        let still = Preconditions { uid: Some(uid.as_str().into()), resource_version: None };
        Ok(self.actor.kube.delete::<Pod>(self.cluster.namespace, &trial.name, still).await?)
    }
}
