//! Whose an object is that has the name of one of ours. What somebody else made is never touched, and is told with what to do
//! about it; what an earlier cluster of this name left is waited for.

use kube::ResourceExt;
use quorate_crds::Reason;

use super::{Acting, Stop};
use crate::api::Namespaced;
use crate::ownership::{Holder, holder};

impl Acting<'_> {
    /// The UID of our own object of this one's name, though no watch shows it: it lost its label, or the watch lags. `None`
    /// if nobody has the name.
    pub(super) async fn own_unseen<K: Namespaced>(&self, object: &K) -> Result<Option<String>, Stop> {
        let found = self.actor.kube.find::<K>(self.cluster.namespace, &object.name_any()).await?;
        let Some(found) = found else { return Ok(None) };
        match holder(&found, &*self.observed.cluster) {
            Holder::Us => Ok(found.uid()),
            Holder::Nobody => {
                let (kind, name) = (K::kind(&()), found.name_any());
                Err(Stop::Surprise(format!("the earlier {kind} {name} is still being deleted")))
            }
            Holder::Stranger => Err(of_a_stranger(&found)),
        }
    }
}

fn of_a_stranger<K: Namespaced>(there: &K) -> Stop {
    let (kind, name) = (K::kind(&()), there.name_any());
    Stop::Refused(
        Reason::NameTaken,
        format!(
            "There is a {kind} {name} that is not this cluster's own, and it is left alone. Delete it if nobody needs it, or \
             use another name for it or for the cluster."
        ),
    )
}
