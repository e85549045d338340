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
