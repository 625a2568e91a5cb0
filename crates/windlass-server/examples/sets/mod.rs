//! The sets of routes that the binary mounts, for the documents that describe all routes.

/// The sets of the features of this build.
pub(crate) async fn all() -> windlass::Result<Vec<windlass_server::RouteSet>> {
    let mut sets = Vec::new();
    #[cfg(feature = "contracts")]
    {
        let engine = windlass::Engine::open("memory:").await?;
        let contracts = windlass::contracts::Contracts::builder().open(engine.core()).await?;
        sets.push(windlass_server::contracts::routes(&contracts));
    }
    #[cfg(feature = "agents")]
    sets.push(windlass_server::llm::routes());
    Ok(sets)
}
