import { texts } from '../texts/texts.ts'

export function PlaygroundView(_: { path: string[] }) {
  return (
    <main class="view">
      <h1>{texts.value.playground}</h1>
    </main>
  )
}
