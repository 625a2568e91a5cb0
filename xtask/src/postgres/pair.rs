//! A primary and a synchronous standby, and the failover between them.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{ACCESS, CONFIG, Cluster, config, free_port, write};
use crate::interrupt::Interrupt;
use crate::process;

const REPLICATION: &str = "host replication all 127.0.0.1/32 trust\n";

/// Two nodes. Node 0 begins as the primary; it is the cluster itself.
pub(crate) struct Pair {
    cluster: Cluster,
    ports: [u16; 2],
    primary: usize,
}

impl Pair {
    /// Starts a primary below `target`, and a standby that confirms every commit.
    pub(crate) fn start(target: &std::path::Path, interrupt: &Interrupt) -> Result<Self> {
        let cluster = Cluster::start(target, interrupt)?;
        let ports = [cluster.port, free_port()?];
        let pair = Self { cluster, ports, primary: 0 };
        write(&pair.data(0).join("pg_hba.conf"), &format!("{ACCESS}{REPLICATION}"))?;
        pair.reload(0)?;
        pair.add_standby()?;
        Ok(pair)
    }

    /// Creates a database, and returns an address that leads to the primary, whichever node it is.
    pub(crate) fn create_database(&self, name: &str) -> Result<String> {
        self.query(&format!("CREATE DATABASE {name}"))?;
        let [first, second] = self.ports;
        Ok(format!(
            "postgres://postgres@127.0.0.1:{first},127.0.0.1:{second}/{name}\
             ?target_session_attrs=read-write"
        ))
    }

    /// Crashes the primary and promotes the standby. The pair has no standby afterwards.
    pub(crate) fn fail_over(&mut self) -> Result<()> {
        self.stop(self.primary)?;
        self.primary = 1 - self.primary;
        let mut promote = self.cluster.program("pg_ctl");
        promote.args(["promote", "--silent", "--wait", "--timeout=60", "--pgdata"]);
        process::capture(promote.arg(self.data(self.primary))).map(drop)
    }

    /// Makes the other node a new standby of the primary. From then on, every commit waits for it.
    pub(crate) fn add_standby(&self) -> Result<()> {
        let standby = 1 - self.primary;
        let data = self.data(standby);
        if data.exists() {
            super::directory::remove(&data)?;
        }
        let mut backup = self.cluster.program("pg_basebackup");
        backup.args(["--host=127.0.0.1", "--username=postgres", "--checkpoint=fast", "--no-sync"]);
        backup.args(["--write-recovery-conf", "--wal-method=stream", "--pgdata"]).arg(&data);
        process::capture(backup.arg(format!("--port={}", self.ports[self.primary])))?;
        self.configure(standby, "")?;
        let log = self.cluster.directory.join(format!("node-{standby}.log"));
        let mut start = self.cluster.program("pg_ctl");
        start.args(["start", "--silent", "--wait", "--timeout=60", "--pgdata"]).arg(&data);
        process::capture(start.arg("--log").arg(log))?;
        self.configure(self.primary, "*")?;
        self.reload(self.primary)?;
        // This commit waits for the standby, and so the standby has all commits before it.
        self.query("SELECT pg_sleep(0.5); SELECT txid_current()")
    }

    fn data(&self, node: usize) -> PathBuf {
        match node {
            0 => self.cluster.data(),
            _ => self.cluster.directory.join("standby"),
        }
    }

    fn configure(&self, node: usize, standbys: &str) -> Result<()> {
        let settings = config(self.ports[node]);
        let text = format!("{settings}synchronous_standby_names = '{standbys}'\n");
        self.cluster.account.write(&self.data(node).join(CONFIG), &text)
    }

    fn reload(&self, node: usize) -> Result<()> {
        let mut reload = self.cluster.program("pg_ctl");
        process::capture(reload.args(["reload", "--silent", "--pgdata"]).arg(self.data(node)))
            .map(drop)
    }

    fn stop(&self, node: usize) -> Result<()> {
        let mut stop = self.cluster.program("pg_ctl");
        stop.args(["stop", "--silent", "--mode=immediate", "--wait", "--timeout=30", "--pgdata"]);
        process::capture(stop.arg(self.data(node))).map(drop)
    }

    fn query(&self, sql: &str) -> Result<()> {
        let mut psql = self.cluster.program("psql");
        psql.envs(self.cluster.client_environment());
        psql.env("PGPORT", self.ports[self.primary].to_string());
        process::capture(psql.args(["--no-psqlrc", "--quiet", "--command", sql]))
            .context("could not query the primary")
            .map(drop)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // The cluster stops node 0 by itself.
        if fs::exists(self.data(1).join("postmaster.pid")).unwrap_or(false)
            && let Err(error) = self.stop(1)
        {
            eprintln!("error: {error:#}");
        }
    }
}
