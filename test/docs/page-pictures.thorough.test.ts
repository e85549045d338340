import { spawnSync } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { testBrowser } from '../support/browser.ts'
import { newFolder } from '../support/folder.ts'
import { pages, readPage } from './guides.ts'

const { skip } = testBrowser(t)
/** Maximum size of a picture, so that guides load quickly. */
const MAX_COUNT = 150_000

t.test('pictures of the page can be taken again', { skip }, async t => {
  const folder = newFolder(t)
  const script = join(packageRoot, 'dist', 'scripts', 'write-page-pictures.js')
  const { status, stderr } = spawnSync(process.execPath, [script, folder], { encoding: 'utf8' })
  t.equal(status, 0, stderr)
  const taken = readdirSync(folder).sort()
  const committed = readdirSync(join(packageRoot, 'docs', 'pictures')).filter(name => name.endsWith('.webp'))
  t.strictSame(taken, committed.sort(), 'the same pictures as in docs/pictures')
  const guides = pages().map(readPage).join('\n')
  for (const name of taken) {
    const picture = readFileSync(join(folder, name))
    t.equal(picture.toString('latin1', 8, 12), 'WEBP', name)
    t.ok(picture.length > 5000 && picture.length < MAX_COUNT, `${name}: ${picture.length} bytes`)
    t.ok(guides.includes(`pictures/${name}`), `a guide shows ${name}`)
  }
})
