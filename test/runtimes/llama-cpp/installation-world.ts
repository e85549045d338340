import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import * as tar from 'tar'
import type { Build } from '../../../core/contracts/builds.ts'
import type { Hardware } from '../../../core/contracts/hardware.ts'
import { CorralError } from '../../../core/errors.ts'
import { type BuildRecord, BuildsDirectory } from '../../../runtimes/llama-cpp/builds-directory.ts'
import { createInstallation, type InstallationDeps } from '../../../runtimes/llama-cpp/installation.ts'
import { builtInKinds } from '../../../runtimes/llama-cpp/kinds/index.ts'
import { rankRuntimes } from '../../../runtimes/llama-cpp/ranking.ts'
import { Releases } from '../../../runtimes/llama-cpp/sources/release.ts'
import { verifyBuild } from '../../../runtimes/llama-cpp/verify-build.ts'
import { newFolder } from '../../support/folder.ts'
import { type ReleaseEmulator, startReleaseServer } from '../../support/release-server.ts'
import { buildOf } from '../llama-server/support.ts'
import { fakeServer, hardwareService, memoryLog, writePrograms } from './fake-build.ts'
import { machine } from './ranking/machines.ts'

export const BROKEN = '#!/bin/sh\necho "version GLIBC_2.39 not found" >&2\nexit 1\n'
export const CPU = (tag: string) => `llama-${tag}-bin-ubuntu-x64.tar.gz`

/** Makes a release's archive with a llama-server that only reports its version. */
export async function archive(t: Test, tag: string, server = fakeServer()): Promise<Buffer> {
  const folder = newFolder(t)
  writePrograms(join(folder, `llama-${tag}`), { 'llama-server': server })
  await tar.c({ gzip: true, cwd: folder, file: join(folder, 'x.tgz') }, [`llama-${tag}`])
  return readFileSync(join(folder, 'x.tgz'))
}

interface World {
  deps: InstallationDeps
  installation: ReturnType<typeof createInstallation>
  server: ReleaseEmulator
  directory: string
  lines: string[]
  hardware: Hardware
  using: Set<string>
  publish(tag: string, server?: string, options?: { stable: boolean }): Promise<void>
}

export async function world(t: Test, more: Partial<InstallationDeps> = {}): Promise<World> {
  const directory = join(t.testdir(), 'runtimes')
  const server = await startReleaseServer(t)
  const log = memoryLog()
  const state: { hardware: Hardware; current: Build | undefined } = { hardware: machine([]), current: undefined }
  const using = new Set<string>()
  const releases = new Releases({
    api_url: server.url,
    download_url: '',
    repository: 'ggml-org/llama.cpp',
    tag: 'latest',
    connect_timeout: '3s',
    directory,
    log
  })
  const deps: InstallationDeps = {
    builds: new BuildsDirectory(directory),
    log,
    releases,
    hardware: hardwareService(() => state.hardware),
    sources: [],
    kinds: builtInKinds,
    ranking: () => rankRuntimes(builtInKinds, state.hardware, []),
    liveRanking: async () => rankRuntimes(builtInKinds, state.hardware, (await releases.listing()).names),
    verifyBuild,
    current: () => state.current,
    setCurrent(build) {
      state.current = build
    },
    search: async () => {
      state.current ??= installation.list()[0]?.build
      if (!state.current) throw new CorralError('runtime_missing', 'there is none')
      return state.current
    },
    inUse: id => using.has(id),
    signal: new AbortController().signal,
    ...more
  }
  const installation = createInstallation(deps)
  return {
    deps,
    installation,
    server,
    directory,
    lines: log.lines,
    using,
    get hardware() {
      return state.hardware
    },
    set hardware(hardware) {
      state.hardware = hardware
    },
    async publish(tag, text, options) {
      server.publish(tag, [{ name: CPU(tag), data: await archive(t, tag, text) }], options)
    }
  }
}

export const build = (id: string, more: Partial<Build> = {}): Build =>
  buildOf(`/builds/${id}/llama-server`, { id, runtime: 'cpu', source: 'release', ...more })
export const record = (id: string, more: Partial<BuildRecord> = {}, of: Partial<Build> = {}): BuildRecord => ({
  format: 1,
  provenAt: '2026-01-01T00:00:00.000Z',
  build: build(id, of),
  files: {},
  server: { size: 1, mtimeMs: 1 },
  ...more
})
export const failure = { reason: 'no', at: '2026-01-01T00:00:00.000Z', machine: 'x' }
