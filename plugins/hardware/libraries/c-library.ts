import type { Findings } from '../findings.ts'
import type { Machine } from '../machine.ts'
import { type Probe, ProbeFailure } from '../probe.ts'

/** Version in the words that the GNU C library holds of itself. */
export function glibcVersion(text: string): string | undefined {
  return /GNU C Library \([^)]*\) (?:stable|development) release version (\d{1,2}\.\d{1,3})/.exec(text)?.[1]
}

const PLACES = [
  '/lib/x86_64-linux-gnu/libc.so.6',
  '/lib/aarch64-linux-gnu/libc.so.6',
  '/usr/lib/x86_64-linux-gnu/libc.so.6',
  '/usr/lib/aarch64-linux-gnu/libc.so.6',
  '/lib64/libc.so.6',
  '/usr/lib64/libc.so.6',
  '/usr/lib/libc.so.6'
]

/** The version that Node runs on; only its own report tells it. */
function ownVersion(): string | undefined {
  const report = process.report as NodeJS.ProcessReport & { excludeNetwork?: boolean }
  const before = report.excludeNetwork
  // Without this, the report asks for the names of all network addresses, one by one.
  report.excludeNetwork = true
  try {
    return (report.getReport() as { header?: { glibcVersionRuntime?: string } }).header?.glibcVersionRuntime
  } finally {
    if (before !== undefined) report.excludeNetwork = before
  }
}

async function recordedVersion({ files }: Machine): Promise<string | undefined> {
  for (const place of PLACES) {
    const version = glibcVersion((await files.text(place)) ?? '')
    if (version !== undefined) return version
  }
  return undefined
}

/** Which C library programs run on: release builds need one that is new enough. */
export const cLibrary: Probe = {
  name: 'c-library',
  platforms: ['linux'],
  async find(machine): Promise<Findings> {
    const glibc = machine.root === '' ? ownVersion() : await recordedVersion(machine)
    if (glibc === undefined) throw new ProbeFailure('absent', 'no glibc; musl has no builds among the releases')
    return { glibc, detail: `glibc ${glibc}` }
  }
}
