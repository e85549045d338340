import t from 'tap'
import { getBlocks, OWN_TESTS, pages } from './guides.ts'
import { runPage } from './run-page.ts'

// Runs every block of every guide, each page on its own server.

// All pages together take some minutes.
t.setTimeout(1_200_000)

const RUN = ['sh', 'js', 'python']

for (const page of pages()) {
  if (page in OWN_TESTS) continue
  if (
    !getBlocks(page).some(({ language, directive = '' }) => RUN.includes(language) && !directive.startsWith('untested'))
  )
    continue
  t.test(page, async t => {
    await runPage(t, page)
  })
}
