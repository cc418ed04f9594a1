//! Relative paths in a file are relative to its directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{LocationSettings, STANDARD_OUTPUT, Settings};
use crate::keys::{Setting, Tables};

impl Settings {
    pub(super) fn anchor(&mut self, directory: &Path) {
        let own = [
            &mut self.root,
            &mut self.temp_directory,
            &mut self.log,
            &mut self.tls_certificate,
            &mut self.tls_key,
            &mut self.tls_client_ca,
            &mut self.acme_ca,
            &mut self.otlp_ca,
            &mut self.state_directory,
        ];
        own.into_iter().for_each(|path| join(path, directory));
        let listen = [&mut self.listen, &mut self.tls_listen];
        let endpoints = listen.into_iter().flatten();
        let endpoints = endpoints.flat_map(|item| &mut item.get_mut().0);
        endpoints.for_each(|endpoint| endpoint.anchor(directory));
        join_pages(&mut self.error_pages, directory);
        join_programs(&mut self.location, directory);
        for host in self.host.iter_mut().flat_map(|host| host.get_mut()) {
            let host = host.get_mut();
            let endpoints = host
                .listen
                .iter_mut()
                .flat_map(|item| &mut item.get_mut().0);
            endpoints.for_each(|endpoint| endpoint.anchor(directory));
            join(&mut host.root, directory);
            join(&mut host.tls_certificate, directory);
            join(&mut host.tls_key, directory);
            join(&mut host.log, directory);
            join_pages(&mut host.error_pages, directory);
            join_programs(&mut host.location, directory);
        }
    }
}

fn join(path: &mut Setting<PathBuf>, directory: &Path) {
    if let Some(path) = path
        && path.get_ref() != Path::new(STANDARD_OUTPUT)
    {
        *path.get_mut() = directory.join(path.get_ref());
    }
}

fn join_pages(pages: &mut Setting<BTreeMap<String, PathBuf>>, directory: &Path) {
    let pages = pages
        .iter_mut()
        .flat_map(|pages| pages.get_mut().values_mut());
    pages.for_each(|page| *page = directory.join(&*page));
}

fn join_programs(locations: &mut Setting<Tables<LocationSettings>>, directory: &Path) {
    for location in locations.iter_mut().flat_map(|list| list.get_mut()) {
        let own = location.get_mut();
        join(&mut own.root, directory);
        let program = own
            .direct
            .as_mut()
            .and_then(|command| command.get_mut().0.first_mut());
        if let Some(program) = program {
            *program = directory.join(&*program).to_string_lossy().into_owned();
        }
    }
}
