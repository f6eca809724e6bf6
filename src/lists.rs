//! Which lists of objects are there, and which are still missing: until all are, nobody acts, leads or is ready. It
//! fetches none of them.

use std::borrow::Cow;
use std::collections::BTreeSet;

use tokio::sync::watch;

/// The lists that one controller needs.
#[derive(Debug)]
pub struct Lists {
    namespace: Option<String>,
    missing: watch::Sender<BTreeSet<Cow<'static, str>>>,
}

impl Lists {
    /// Lists of objects of these kinds, in one namespace or in all. None is there yet.
    pub fn new(namespace: Option<String>, kinds: impl IntoIterator<Item = Cow<'static, str>>) -> Self {
        Self { namespace, missing: watch::Sender::new(kinds.into_iter().collect()) }
    }

    /// The list of this kind is there.
    pub fn has(&self, kind: &str) {
        self.missing.send_if_modified(|missing| missing.remove(kind));
    }

    /// Resolves once all are there.
    pub async fn filled(&self) {
        // The sender is our own, so the channel is never closed.
        let _ = self.missing.subscribe().wait_for(BTreeSet::is_empty).await;
    }

    /// What is missing, in words; `None` once all are there.
    pub fn missing(&self) -> Option<String> {
        let missing = self.missing.borrow();
        let kinds = missing.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join(", ");
        let of = self.namespace.as_ref().map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default();
        (!missing.is_empty()).then(|| format!("{kinds}{of}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn they_are_filled_once_each_is_there() {
        let lists = Lists::new(Some("shop".into()), ["Pod".into(), "CronJob".into()]);
        assert_eq!(lists.missing().as_deref(), Some("CronJob, Pod in namespace shop"));
        lists.has("Pod");
        lists.has("Pod");
        lists.has("Lease");
        assert_eq!(lists.missing().as_deref(), Some("CronJob in namespace shop"));
        lists.has("CronJob");
        lists.filled().await;
        assert_eq!(lists.missing(), None);
    }
}
