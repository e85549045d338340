import { chmodSync, cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import * as tar from 'tar'
import { isProgramOrLibrary } from '../../runtimes/llama-cpp/programs.ts'
import { engineBuildFolder } from './engine-build.ts'
import type { ReleaseFile } from './release-server.ts'

/** The name of the archive for this machine's processor. */
export function archiveName(tag: string): string {
  const system = process.platform === 'darwin' ? 'macos' : 'ubuntu'
  return `llama-${tag}-bin-${system}-${process.arch}.tar.gz`
}

/** Libraries for processors that the tests do not need. Without them archives stay small. */
const SPARED = /libggml-cpu-(alderlake|cannonlake|cascadelake|cooperlake|ivybridge|piledriver|sapphirerapids|zen4)\./

/**
 * A release's archive made of the real engine, in the layout of the real ones: one folder `llama-<tag>` with programs and
 * libraries side by side.
 * @param server text of a shell script to use as llama-server, which is then called `llama-server-real`
 * @param rename gives entries other paths
 */
export async function engineArchive(
  tag: string,
  server?: string,
  rename: (path: string) => string = path => path
): Promise<Buffer> {
  const folder = mkdtempSync(join(tmpdir(), 'corral-release-'))
  try {
    const inner = join(folder, `llama-${tag}`)
    mkdirSync(inner)
    const build = engineBuildFolder()
    for (const name of readdirSync(build)) {
      if (isProgramOrLibrary(name) && !SPARED.test(name)) {
        cpSync(join(build, name), join(inner, name), { verbatimSymlinks: true })
      }
    }
    if (server !== undefined) {
      cpSync(join(inner, 'llama-server'), join(inner, 'llama-server-real'))
      writeFileSync(join(inner, 'llama-server'), server)
      chmodSync(join(inner, 'llama-server'), 0o755)
    }
    // Makes releases differ, since all contain the same engine.
    writeFileSync(join(inner, 'LICENSE'), `Release ${tag}\n`)
    const onWriteEntry = (entry: { path: string }) => {
      entry.path = rename(entry.path)
    }
    await tar.c({ gzip: { level: 0 }, cwd: folder, file: join(folder, 'a.tgz'), onWriteEntry }, [`llama-${tag}`])
    return readFileSync(join(folder, 'a.tgz'))
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

/** The files of a release: this machine's archive among archives for other machines. */
export function releaseFiles(tag: string, archive: Buffer): ReleaseFile[] {
  const others = [
    `cudart-llama-${tag}-bin-ubuntu-cuda-12.8-x64.tar.gz`,
    'cudart-llama-bin-win-cuda-12.4-x64.zip',
    `llama-${tag}-bin-android-arm64.tar.gz`,
    `llama-${tag}-bin-ubuntu-cuda-12.8-x64.tar.gz`,
    `llama-${tag}-bin-ubuntu-openvino-2026.4-x64.tar.gz`,
    `llama-${tag}-bin-ubuntu-s390x.tar.gz`,
    `llama-${tag}-bin-win-cpu-x64.zip`,
    `llama-${tag}-ui.tar.gz`,
    `llama-${tag}-xcframework.zip`
  ]
  return [
    ...others.map(name => ({ name, data: Buffer.from(`of another machine: ${name}`) })),
    { name: archiveName(tag), data: archive }
  ]
}

/** Shell scripts of servers in bad releases, for `engineArchive`. */
export const BAD_SERVERS = {
  exits:
    '#!/bin/sh\necho "error while loading shared libraries: libfoo.so.1: cannot open shared object file" >&2\nexit 1\n',
  nonsense:
    '#!/bin/sh\ncase "$1" in --version|--list-devices) ;; *) set -- "$@" --grammar "root ::= \\"no\\"";; esac\n' +
    'exec "$(dirname "$0")/llama-server-real" "$@"\n',
  /** Loads the demo model from corral's own folder, as a verification does, and nothing else. */
  failsLater:
    '#!/bin/sh\ncase "$*" in --version|--list-devices|*demo-model*) exec "$(dirname "$0")/llama-server-real" "$@";; esac\n' +
    'echo "failed to load model: as scripted" >&2\nexit 1\n'
}
