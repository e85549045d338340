import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { namedHosts, renderAddresses } from '../../scripts/address-docs.ts'

t.test('the list of addresses explains each host that the source names', async t => {
  for (const [name, text] of Object.entries(renderAddresses())) {
    t.ok(readFileSync(join(packageRoot, 'docs', name), 'utf8') === text, `docs/${name}: run "npm run docs:write"`)
  }
  const hosts = namedHosts()
  t.ok(hosts.get('huggingface.co')?.includes('plugins/models/hubs/hf-like.ts'))
  const more = new Map([...hosts, ['telemetry.corral.dev', ['core/new.ts']]])
  t.throws(() => renderAddresses(more), /Explain in scripts\/addresses\.json: telemetry\.corral\.dev \(core\/new\.ts\)/)
  const less = new Map([...hosts].filter(([host]) => host !== 'pypi.org'))
  t.throws(() => renderAddresses(less), /Remove from scripts\/addresses\.json: pypi\.org/)
})
