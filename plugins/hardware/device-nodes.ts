import { access, constants } from 'node:fs/promises'
import type { Findings } from './findings.ts'
import { type Probe, ProbeFailure } from './probe.ts'

async function mayOpen(path: string): Promise<boolean> {
  try {
    await access(path, constants.R_OK | constants.W_OK)
    return true
  } catch {
    return false
  }
}

/**
 * Whether this user may open the devices through which AMD and Intel GPUs compute. They belong to groups, and are
 * missing in containers that were not given them.
 */
export const deviceNodes: Probe = {
  name: 'device-nodes',
  platforms: ['linux'],
  async find({ root, files }): Promise<Findings> {
    if (root !== '') throw new ProbeFailure('absent', 'recordings have no devices')
    const nodes = (await files.names('/dev/dri')).filter(name => name.startsWith('renderD'))
    const open = await Promise.all(nodes.map(name => mayOpen(`/dev/dri/${name}`)))
    if (open.includes(true)) return { detail: `${nodes.length} in /dev/dri` }
    const detail = nodes.length === 0 ? 'none in /dev/dri' : `those in /dev/dri may not be opened: ${nodes.join(', ')}`
    return { noDeviceAccess: true, detail }
  }
}
