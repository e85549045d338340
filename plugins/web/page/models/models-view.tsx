import { texts } from '../texts/texts.ts'

export function ModelsView(_: { path: string[] }) {
  return (
    <main class="view">
      <h1>{texts.value.models}</h1>
    </main>
  )
}
