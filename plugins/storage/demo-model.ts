import { existsSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import writeFileAtomic from 'write-file-atomic'
import type { ModelName } from '../../core/models/model-name.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import type { ModelStore } from './model-store.ts'

/** The model that corral brings along. */
export const DEMO_MODEL: ModelName = { owner: 'corral', name: 'tiny-chat' }
const DEMO_FILE = join(packageRoot, 'plugins', 'storage', 'demo-model', 'tiny-chat-f16.gguf')

/**
 * Stores the demo model at the first start with a data directory. A mark in that directory, not among the models,
 * keeps it from coming back when it has been deleted.
 */
export async function installDemoModel(store: ModelStore, home: string): Promise<void> {
  const mark = join(home, 'demo-model-installed')
  if (existsSync(mark)) return
  if (!store.find(DEMO_MODEL)) {
    await store.import(
      { path: DEMO_FILE, name: DEMO_MODEL },
      // Not a link: an upgrade of corral may write into its own files.
      { origin: { kind: 'bundled', from: 'corral' }, allowHardLink: false }
    )
  }
  await mkdir(home, { recursive: true })
  await writeFileAtomic(mark, 'corral/tiny-chat was stored once. Delete this file to have it again.\n')
}
