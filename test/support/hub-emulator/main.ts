import { readdirSync } from 'node:fs'
import { join, relative, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import type { EmulatedFile } from './contents.ts'
import { startHubEmulator } from './hub-emulator.ts'
import type { EmulatedRepository } from './repositories.ts'

const HELP = `Serves the folders below a folder as a model hub: <folder>/<owner>/<name>/<files>.

  node dist/test/support/hub-emulator/main.js <folder> [--hub huggingface|csghub|modelscope] [--port 8080]
    --bandwidth <bytes a second of each connection>
    --life <milliseconds that signed addresses are good for>
    --cut <bytes after which every answer is cut>
    --latency <milliseconds before every answer with bytes>
    --gated <owner/name>  --private <owner/name>  --token <token that opens them>

Then: HF_ENDPOINT=http://127.0.0.1:8080 corral pull <owner>/<name>
`

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    hub: { type: 'string', default: 'huggingface' },
    port: { type: 'string', default: '8080' },
    bandwidth: { type: 'string' },
    life: { type: 'string' },
    cut: { type: 'string' },
    latency: { type: 'string' },
    gated: { type: 'string', multiple: true, default: [] },
    private: { type: 'string', multiple: true, default: [] },
    token: { type: 'string' },
    help: { type: 'boolean', short: 'h' }
  }
})
const [folder] = positionals
if (values.help || !folder || !['huggingface', 'csghub', 'modelscope'].includes(values.hub)) {
  console.error(HELP)
  process.exit(values.help ? 0 : 2)
}

const repositories: Record<string, EmulatedRepository> = {}
for (const entry of readdirSync(resolve(folder), { withFileTypes: true, recursive: true })) {
  if (!entry.isFile() && !entry.isSymbolicLink()) continue
  const from = join(entry.parentPath, entry.name)
  const [owner, name, ...path] = relative(resolve(folder), from).split(/[\\/]/)
  if (path.length === 0) continue
  const repository = `${owner}/${name}`
  repositories[repository] ??= {
    files: {} as Record<string, EmulatedFile>,
    ...(values.gated.includes(repository) ? { gated: 'manual' as const } : {}),
    private: values.private.includes(repository),
    ...(values.token ? { token: values.token } : {})
  }
  repositories[repository].files[path.join('/')] = { from }
}

const hub = await startHubEmulator(
  { teardown: () => {} },
  {
    hub: values.hub as 'huggingface',
    repositories,
    port: Number(values.port),
    ...(values.bandwidth ? { bandwidth: { perConnection: Number(values.bandwidth) } } : {}),
    ...(values.life ? { signedUrls: { lifeMs: Number(values.life) } } : {})
  }
)
if (values.cut) hub.fault({ kind: 'cut', after: Number(values.cut) })
if (values.latency) hub.fault({ kind: 'latency', milliseconds: Number(values.latency) })
console.log(`${values.hub} at ${hub.url}, bytes at ${hub.cdn.url}`)
for (const name of Object.keys(repositories)) console.log(`  ${name}`)
