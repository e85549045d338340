import t from 'tap'
import { runPage } from './run-page.ts'

// Runs the README's blocks. Its Python runs with the other guides.

t.test('the commands and samples of the README work', async t => {
  await runPage(t, 'README.md', { everyday: true })
})
