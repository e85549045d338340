import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Test } from 'tap'

/* A file system of a chosen size in memory, for tests with a full disk, if this user may mount one. */

const run = (command: string, ...args: string[]) => execFileSync(command, args, { stdio: 'pipe' })
const unmount = (folder: string) => run('umount', '-l', folder)

function mount(size: string): string {
  const folder = mkdtempSync(join(tmpdir(), 'corral-test-'))
  try {
    run('mount', '-t', 'tmpfs', '-o', `size=${size}`, 'tmpfs', folder)
    return folder
  } catch (error) {
    rmSync(folder, { recursive: true, force: true })
    throw error
  }
}

/** Why no small file system can be made here, or false if it can. */
export function noSmallDisk(): string | false {
  try {
    const folder = mount('1m')
    unmount(folder)
    rmSync(folder, { recursive: true, force: true })
    return false
  } catch (error) {
    return `no small file system can be mounted here: ${(error as Error).message.trim()}`
  }
}

/**
 * A folder with this much space, such as `96m`, until the test ends. `resize` changes the size, `remount` the options.
 */
export function smallDisk(t: Pick<Test, 'teardown'>, size: string) {
  const folder = mount(size)
  t.teardown(() => {
    unmount(folder)
    rmSync(folder, { recursive: true, force: true })
  })
  const remount = (options: string) => void run('mount', '-o', `remount,${options}`, folder)
  return { folder, remount, resize: (size: string) => remount(`size=${size}`) }
}
