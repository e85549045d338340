import { texts } from '../texts/texts.ts'

export function ServerView(_: { path: string[] }) {
  return (
    <main class="view">
      <h1>{texts.value.server}</h1>
    </main>
  )
}
