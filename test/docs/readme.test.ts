import t from 'tap'
import { runPage } from './run-page.ts'

// What the README shows, by the letter; its Python is run with that of the other guides.

t.test('the commands and samples of the README work', async t => {
  await runPage(t, 'README.md', { everyday: true })
})
