declare module 'temml' {
  const temml: {
    /** Renders a formula into an element. @throws if it is invalid and `throwOnError` is set */
    render(
      text: string,
      element: HTMLElement,
      options: { displayMode: boolean; throwOnError: boolean; trust: boolean; maxExpand: number }
    ): void
  }
  export default temml
}

/** The languages with texts, which the build finds. */
declare module 'corral:languages' {
  type Texts = typeof import('./texts/en.json')
  /** Names by code. */
  export const LANGUAGES: Readonly<Record<string, string>>
  /** Load the texts of languages other than English. */
  export const loaders: Readonly<Record<string, () => Promise<{ default: Texts }>>>
}
