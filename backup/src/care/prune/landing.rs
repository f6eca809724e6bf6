//! Looking for garbage while somebody commits: a store in memory in which a manifest lands right after the data was listed.

use std::fmt;
use std::future::ready;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt, once};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result,
};

use super::look;
use crate::format::Link;
use crate::format::tests::stored;
use crate::store::{Key, Store};

/// What all keys begin with in the store.
const PREFIX: &str = "prefix";

fn path(key: &Key) -> Path {
    Path::from(format!("{PREFIX}/{key}"))
}

/// An object, and the folder after whose listing it is there.
#[derive(Debug)]
struct Landing {
    folder: Path,
    object: Path,
    content: PutPayload,
}

#[derive(Debug, Default)]
struct Landings {
    inner: Arc<InMemory>,
    next: Mutex<Option<Landing>>,
}

impl fmt::Display for Landings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Landings")
    }
}

#[async_trait]
impl ObjectStore for Landings {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(path, options).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listed = self.inner.list(prefix);
        let next = self.next.lock().unwrap().take_if(|next| Some(&next.folder) == prefix);
        let Some(Landing { folder: _, object, content }) = next else { return listed };
        let inner = Arc::clone(&self.inner);
        let lands = once(async move { inner.put_opts(&object, content, PutOptions::default()).await });
        listed.chain(lands.filter_map(|landed| ready(landed.err().map(Err)))).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[tokio::test]
async fn data_whose_manifest_comes_while_it_is_looked_at_is_no_garbage() {
    let objects = Arc::new(Landings::default());
    let store = Store::over(objects.clone(), format!("s3://bucket/{PREFIX}").parse().unwrap());
    let chain = stored(&store, 100, &[(20, 110)]).await;
    let [Link { delta, hash: _ }] = &chain.links[..] else { panic!("there is one delta") };
    let (manifest, data) = (chain.key.delta(delta.from), chain.key.data(&delta.data.name));
    store.create(&data, "x".into()).await.unwrap();
    let unreferred = async || {
        let looked = look(&store, chain.key.clone(), &|_, _| {}).await.unwrap();
        looked.unreferred.into_iter().map(|listed| listed.key).collect::<Vec<_>>()
    };
    assert_eq!(unreferred().await, []);
    store.delete(&manifest).await.unwrap();
    assert_eq!(unreferred().await, [data], "its writer has not come to its end");
    let (folder, object) = (path(&chain.key.folder()), path(&manifest));
    *objects.next.lock().unwrap() = Some(Landing { folder, object, content: delta.write().into() });
    assert_eq!(unreferred().await, []);
    assert!(objects.next.lock().unwrap().is_none(), "it has not come");
}
