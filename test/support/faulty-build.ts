import { chmodSync, cpSync, mkdirSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { engineBuildFolder } from './engine-build.ts'

/** A llama.cpp build with the real llama-server behind a shell script that can run commands first. */
export interface FaultyBuild {
  folder: string
  /** A copy of the real program in a folder without its libraries. */
  bare: string
  /** Sets shell commands that run before each load. `$0` is the script, `$@` the arguments of llama-server. */
  before(commands: string): void
  /** Removes the fault. */
  mend(): void
}

/** Makes such a build in an empty folder. `--version`, `--help` and `--list-devices` always work. */
export function faultyBuild(folder: string): FaultyBuild {
  const real = engineBuildFolder()
  const build = join(folder, 'build')
  const bare = join(folder, 'bare')
  mkdirSync(build)
  mkdirSync(bare)
  for (const name of readdirSync(real)) {
    if (name !== 'llama-server') symlinkSync(join(real, name), join(build, name))
  }
  cpSync(join(real, 'llama-server'), join(bare, 'llama-server'))
  const fault = join(folder, 'fault.sh')
  const server = join(build, 'llama-server')
  writeFileSync(
    server,
    `#!/bin/sh
case " $* " in *" --model "*) if [ -e "${fault}" ]; then . "${fault}"; fi;; esac
exec "${join(real, 'llama-server')}" "$@"
`
  )
  chmodSync(server, 0o755)
  return {
    folder: build,
    bare: join(bare, 'llama-server'),
    before: commands => writeFileSync(fault, `${commands}\n`),
    mend: () => rmSync(fault, { force: true })
  }
}
